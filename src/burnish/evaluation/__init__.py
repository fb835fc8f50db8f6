"""Evaluation: what a model scores on a text or on labelled examples."""
