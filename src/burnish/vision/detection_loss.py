"""The loss of detection as one module: images and target maps in, focal loss of the heat plus L1 of sizes and offsets out.

Focal: -(1 - p)^2 log p at centres, -(1 - heat)^4 p^2 log(1 - p) elsewhere (Law and Deng 2018, "CornerNet", arXiv 1808.01244,
equation 1). L1 is weighted by the target's weight in each cell, which sums to about one a box.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from burnish.vision.box_targets import EXTRA

FOCUS, NEARNESS = 2, 4  # powers of CornerNet
SIZE_WEIGHT = 0.4  # of sizes in cells: 0.1 a pixel (arXiv 1904.07850, section 4) times the cell's pixels


class DetectionLoss(nn.Module):
    """Network and loss together, so that whatever wraps it sees forward and loss as one call."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images_BCHW: Tensor, targets_BKHW: Tensor) -> Tensor:
        """The sum over all cells, a scalar; the loop divides by the number of boxes."""
        found = self.model(images_BCHW)
        found = found.to(torch.promote_types(found.dtype, torch.float32))
        classes = targets_BKHW.shape[1] - EXTRA
        heat, geometry, weight = targets_BKHW[:, :classes], targets_BKHW[:, classes:-1], targets_BKHW[:, -1:]
        return heat_loss(found[:, :classes], heat) + box_loss(found[:, classes:], geometry, weight)


def heat_loss(logits: Tensor, heat: Tensor) -> Tensor:
    """The focal loss, summed."""
    likely = logits.sigmoid()
    centre = (heat == 1).to(logits.dtype)
    here = (1 - likely) ** FOCUS * F.logsigmoid(logits) * centre
    there = (1 - heat) ** NEARNESS * likely**FOCUS * F.logsigmoid(-logits)
    return -(here + there).sum()


def box_loss(found: Tensor, wanted: Tensor, weight: Tensor) -> Tensor:
    """L1 of sizes and offsets [B, 4, rows, columns], summed with each cell's weight."""
    apart = (found - wanted).abs() * weight
    return SIZE_WEIGHT * apart[:, :2].sum() + apart[:, 2:].sum()
