"""Files out: model folders other programs load, and the checks that they say what the model says."""
