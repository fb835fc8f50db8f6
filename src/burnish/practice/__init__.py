"""Practice: questions about thirteen decisions, each explained at once and backed by a measurement on the user's machine."""
