"""Techniques, one file each: `Config`, `check`, `predict` (the description) and `apply` (the thing)."""
