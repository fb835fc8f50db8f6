"""Box variation: a training patch flipped, scaled and shifted by one resampling, its boxes moved with it; by a generator."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from burnish.vision.sections import Augment

KEPT = 0.4  # share of a box that must still be inside for it to be learned


def varied(
    image: Tensor, boxes: Tensor, labels: Tensor, settings: Augment, generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    """An image [C, H, W] with boxes [N, 4] (left, top, right, bottom) and labels [N], varied as `settings` allow."""
    drawn = (torch.rand(4, generator=generator) * 2 - 1).tolist()
    flips = (torch.rand(2, generator=generator) < 0.5).tolist()
    scale = (1 + drawn[0] * settings.scale, 1 + drawn[1] * settings.scale)
    shift = (drawn[2] * settings.shift, drawn[3] * settings.shift)
    flipped = tuple(bool(wanted and flip) for wanted, flip in zip(settings.flip or (False, False), flips, strict=True))
    return moved(image, boxes, labels, scale, shift, (flipped[0], flipped[1]))


def moved(
    image: Tensor,
    boxes: Tensor,
    labels: Tensor,
    scale: tuple[float, float],
    shift: tuple[float, float],
    flip: tuple[bool, bool],
) -> tuple[Tensor, Tensor, Tensor]:
    """Scaled around the middle by (down, across), flipped, and shifted by shares of the sides; what is around is the edge.

    Boxes are cut to the image; one of which less than `KEPT` is left inside goes.
    """
    if scale == (1.0, 1.0) and shift == (0.0, 0.0) and not any(flip):
        return image, boxes, labels
    rows, columns = image.shape[1:]
    down, across = (size * (-1 if turned else 1) for size, turned in zip(scale, flip, strict=True))
    # A pixel of the result at p (from the middle, in half sides) is read at (p - 2 shift) / scale.
    matrix = torch.tensor([[[1 / across, 0, -2 * shift[1] / across], [0, 1 / down, -2 * shift[0] / down]]])
    grid = F.affine_grid(matrix, [1, *image.shape], align_corners=False)
    made = F.grid_sample(image[None], grid, padding_mode="border", align_corners=False)[0]
    middle = torch.tensor([columns / 2, rows / 2] * 2)
    by, along = torch.tensor([across, down] * 2), torch.tensor([shift[1] * columns, shift[0] * rows] * 2)
    ends = (boxes - middle) * by + middle + along
    ends = torch.cat((torch.minimum(ends[:, :2], ends[:, 2:]), torch.maximum(ends[:, :2], ends[:, 2:])), dim=1)
    inside = ends.clamp_min(0).minimum(torch.tensor([columns, rows] * 2, dtype=ends.dtype))
    left = areas(inside) >= KEPT * areas(ends).clamp_min(1e-6)
    return made, inside[left], labels[left]


def areas(boxes: Tensor) -> Tensor:
    """Areas of boxes [N, 4]."""
    return (boxes[:, 2:] - boxes[:, :2]).prod(dim=1)
