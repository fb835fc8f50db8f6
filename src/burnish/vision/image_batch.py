"""ImageBatch: a stack of patches with their labels, as the training loop takes it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class ImageBatch:
    """Images float32 [B, C, *patch] and labels int64 [B, *patch]. The loss of a batch counts once for each image."""

    images: Tensor
    labels: Tensor

    @property
    def label_count(self) -> int:
        """What the summed loss of the batch is divided by."""
        return len(self.images)

    @property
    def input_count(self) -> int:
        """Images, of which a step's speed is told."""
        return len(self.images)

    def tensors(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """The arguments of the loss."""
        return self.images.to(device), self.labels.to(device)
