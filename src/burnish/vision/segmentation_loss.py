"""The loss of segmentation as one module: images and labels in, Dice plus cross entropy out.

MONAI's DiceCELoss; Dice is taken over the whole batch, so that an image without a class asks for none of it. Its smoothing
makes two empty masks agree, as the metric has it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class SegmentationLoss(nn.Module):
    """Network and loss together, so that whatever wraps it sees forward and loss as one call."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        from monai import losses

        kind: Any = getattr(losses, "DiceCELoss")  # noqa: B009
        self.model = model
        self.loss = kind(softmax=True, to_onehot_y=True, include_background=False, batch=True)

    def forward(self, images_BC: Tensor, labels_B: Tensor) -> Tensor:
        """The loss of a batch times its images, a float32 scalar: the loop divides by their number."""
        scores = self.model(images_BC)
        wide = torch.promote_types(scores.dtype, torch.float32)
        found: Tensor = self.loss(scores.to(wide), labels_B[:, None])
        return found * len(images_BC)
