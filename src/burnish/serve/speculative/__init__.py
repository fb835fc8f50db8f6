"""Speculative decoding: a draft guesses, the target verifies several guesses in one step, a gate says whether that pays."""
