"""Encoders: what a network of the BERT family looks like, in its files and as work; no torch."""
