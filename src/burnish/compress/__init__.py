"""Compress: a model made smaller or faster without training, and held against what it was."""
