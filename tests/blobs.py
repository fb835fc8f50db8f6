"""Blobs: bright ellipses on noise with their masks, as a segmentation set that needs no files."""

import numpy as np
import torch
from torch import Tensor, nn


def blobs(count: int, size: int = 32, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Images [B, 1, H, W] and labels [B, H, W]: class 1 bright ellipses, class 2 dark ones."""
    draw = np.random.default_rng(seed)
    down, across = np.mgrid[:size, :size]
    images = draw.normal(0, 0.3, (count, 1, size, size)).astype(np.float32)
    labels = np.zeros((count, size, size), np.int64)
    for row in range(count):
        for kind, light in ((1, 1.0), (2, -1.0)):
            (y, x), (a, b) = draw.uniform(6, size - 6, 2), draw.uniform(3, 7, 2)
            inside = ((down - y) / a) ** 2 + ((across - x) / b) ** 2 < 1
            images[row, 0][inside] = light + draw.normal(0, 0.2, inside.sum())
            labels[row][inside] = kind
    return torch.from_numpy(images), torch.from_numpy(labels)


def learn(model: nn.Module, steps: int, seed: int = 0, size: int = 32, lr: float = 1e-2) -> float:
    """Train a model on blobs drawn anew each step; its last loss."""
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    model.train()
    loss = torch.zeros(())
    for step in range(steps):
        images, labels = blobs(8, size, seed=1000 * seed + step + 1)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
    model.eval()
    return float(loss.detach())


def dice_of(found: Tensor, labels: Tensor, classes: int = 3) -> float:
    """Mean Dice of classes over all images at once; `found` are scores [B, C, H, W]."""
    chosen = found.argmax(1)
    both = [
        2 * float(((chosen == k) & (labels == k)).sum()) / max(float((chosen == k).sum() + (labels == k).sum()), 1.0)
        for k in range(1, classes)
    ]
    return sum(both) / len(both)
