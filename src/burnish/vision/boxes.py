"""Boxes out of a detector's maps, whoever ran it: the highest peaks of the heat, with the size and offset that stand there.

A peak is a cell that no neighbour exceeds, found by a 3 x 3 maximum in place of non-maximum suppression (Zhou et al. 2019,
arXiv 1904.07850, section 4.1). No torch, so that what an ONNX file gives is read by the same code.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from burnish.errors import UserError

Floats = NDArray[np.float32]
STRIDE = 4  # pixels of a cell
GEOMETRY = 4  # channels after the classes: width, height, offset to the right, offset downwards, all in cells


@dataclass(frozen=True, eq=False)
class Found:
    """Boxes [N, 4] (left, top, right, bottom in pixels), scores [N] from high to low, and labels [N] of one picture."""

    boxes: Floats
    scores: Floats
    labels: NDArray[np.int64]


def decoded(maps: Floats, most: int, size: tuple[int, int] | None = None) -> list[Found]:
    """The `most` highest peaks of maps [B, classes + GEOMETRY, rows, columns].

    Boxes are cut to a picture of `size` (height, width), where one is given; those outside of it are left out. Raises UserError
    for maps that are not finite.
    """
    if not np.isfinite(maps).all():
        raise UserError("the detector gives values that are not finite; is the model sound, and are the pictures?")
    return [_of_one(one, most, size) for one in maps.astype(np.float32)]


def _of_one(maps: Floats, most: int, size: tuple[int, int] | None) -> Found:
    logits, geometry = maps[:-GEOMETRY], maps[-GEOMETRY:]
    flat = np.flatnonzero(logits == highest_around(logits))
    chosen = flat[np.argsort(-logits.ravel()[flat], kind="stable")[:most]]
    labels, rows, columns = np.unravel_index(chosen, logits.shape)
    width, height, right, down = geometry[:, rows, columns]
    x, y = (columns + right) * STRIDE, (rows + down) * STRIDE
    half_width, half_height = np.maximum(width, 0) * STRIDE / 2, np.maximum(height, 0) * STRIDE / 2
    boxes = np.stack((x - half_width, y - half_height, x + half_width, y + half_height), axis=1).astype(np.float32)
    scores = (1 / (1 + np.exp(-logits.ravel()[chosen].astype(np.float64)))).astype(np.float32)
    if size is not None:
        limits = np.array([size[1], size[0]] * 2, np.float32)
        boxes = np.clip(boxes, 0, limits)
    whole = (boxes[:, 2] > boxes[:, 0]) & (boxes[:, 3] > boxes[:, 1])
    return Found(boxes[whole], scores[whole], labels[whole].astype(np.int64))


def highest_around(values: Floats) -> Floats:
    """The maximum over each cell [K, rows, columns] and its eight neighbours."""
    padded = np.pad(values, ((0, 0), (1, 1), (1, 1)), constant_values=-np.inf)
    rows, columns = values.shape[1:]
    return np.asarray(
        np.maximum.reduce([padded[:, r : r + rows, c : c + columns] for r in range(3) for c in range(3)]), np.float32
    )
