"""Data, not code paths: what differs between model families, one row a family."""
