"""Runners: what computes the parts of a decoder between one attention and the next."""
