"""Networks in plain torch: files here import torch and each other, nothing else."""
