"""Burnish: make a model fit, make it fast, and prove it."""

__version__ = "0.1.0"
