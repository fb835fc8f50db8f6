"""Load on a server of completions: requests made from a seed, sent when they are due, timed by what comes back."""
