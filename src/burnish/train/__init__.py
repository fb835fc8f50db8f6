"""Training: one step, one loop over it, and what they need (loss, optimizer, checkpoints, evaluation)."""
