"""Box targets: the boxes of one picture as the map that a detector learns from.

A Gaussian of the box's own shape around the cell of its centre (Liu et al. 2020, "TTFNet", arXiv 1909.00700, section 3), 1 there;
beside it, where the Gaussian is high, what the box's size and offset are as seen from that cell.
"""

from __future__ import annotations

import torch
from torch import Tensor

from burnish.vision.boxes import GEOMETRY, STRIDE

SPREAD = 0.54 / 6  # of a box's side is one standard deviation (arXiv 1909.00700, equation 1 and table 1)
NEAR = 0.2  # of the Gaussian: cells where it is higher learn the box too
LEAST = 1e-3  # of a cell: no side or deviation is smaller
EXTRA = GEOMETRY + 1  # channels after the classes: those of the box, and its weight in this cell


def targets_of(boxes: Tensor, labels: Tensor, classes: int, cells: tuple[int, int]) -> Tensor:
    """Boxes [N, 4] (left, top, right, bottom in pixels) with labels [N] as a map [classes + EXTRA, rows, columns].

    Where two boxes meet, heat is the larger one, and the cell learns the box whose Gaussian is higher, of equals the smaller.
    """
    rows, columns = cells
    made = torch.zeros(classes + EXTRA, rows, columns)
    if not len(boxes):
        return made
    sides = ((boxes[:, 2:] - boxes[:, :2]) / STRIDE).clamp_min(LEAST)
    order = sides.prod(dim=1).argsort(stable=True)
    sides, labels = sides[order], labels[order]
    centres = (boxes[order, :2] + boxes[order, 2:]) / 2 / STRIDE
    cell = torch.minimum(centres.floor().clamp_min(0), torch.tensor([columns - 1.0, rows - 1.0]))
    across, down = torch.arange(columns, dtype=torch.float32), torch.arange(rows, dtype=torch.float32)
    deviation = (sides * SPREAD).clamp_min(LEAST)
    x = ((across[None] - cell[:, :1]) / deviation[:, :1]).square()
    y = ((down[None] - cell[:, 1:]) / deviation[:, 1:]).square()
    gauss = torch.exp(-(x[:, None, :] + y[:, :, None]) / 2)  # [N, rows, columns]
    index = labels[:, None, None].expand_as(gauss)
    made[:classes].scatter_reduce_(0, index, gauss, reduce="amax")
    weight, owner = gauss.max(dim=0)
    made[classes : classes + 2] = sides[owner].permute(2, 0, 1)
    made[classes + 2] = centres[owner, 0] - across[None]
    made[classes + 3] = centres[owner, 1] - down[:, None]
    made[-1] = torch.where(weight > NEAR, weight, torch.zeros(()))
    made[classes:-1] *= made[-1] > 0
    return made
