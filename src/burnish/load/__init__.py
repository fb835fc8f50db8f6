"""Models in: checkpoints that others wrote, opened without running anything of theirs, and made into our modules."""
