"""BoxBatch: a stack of pictures with their target maps, as the training loop takes it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class BoxBatch:
    """Images float32 [B, C, H, W] and targets float32 [B, classes + EXTRA, rows, columns], with `boxes` in all of them."""

    images: Tensor
    targets: Tensor
    boxes: int

    @property
    def label_count(self) -> int:
        """What the summed loss of the batch is divided by; a batch without boxes still has a background to learn."""
        return max(self.boxes, 1)

    @property
    def input_count(self) -> int:
        """Images, of which a step's speed is told."""
        return len(self.images)

    def tensors(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """The arguments of the loss."""
        return self.images.to(device), self.targets.to(device)
