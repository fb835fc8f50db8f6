"""Finding boxes in whole pictures: each padded to what the network's levels halve, pictures of one size together."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from burnish.errors import UserError
from burnish.vision.boxes import Found, decoded
from burnish.vision.inference import Labeller
from burnish.vision.normalise import normalised

Pixels = NDArray[np.uint8]


def find(own: Labeller, pictures: Sequence[Pixels]) -> list[Found]:
    """Boxes of pictures [C, H, W], in their order. Raises UserError for other channels than the network's."""
    sizes: dict[tuple[int, int], list[int]] = {}
    for number, pixels in enumerate(pictures):
        if pixels.shape[0] != own.network.in_channels:
            raise UserError(f"a picture has {pixels.shape[0]} channels, the network reads {own.network.in_channels}")
        sizes.setdefault((pixels.shape[1], pixels.shape[2]), []).append(number)
    found: dict[int, Found] = {}
    for size, numbers in sizes.items():
        for first in range(0, len(numbers), own.inference.batch):
            some = numbers[first : first + own.inference.batch]
            images = np.stack([as_read(own, pictures[number]) for number in some])
            found |= zip(some, decoded(own.predict(images), own.inference.most_boxes, size), strict=True)
    return [found[number] for number in range(len(pictures))]


def as_read(own: Labeller, pixels: Pixels) -> NDArray[np.float32]:
    """A picture as the network reads it: normalised, its last row and column repeated up to a multiple of the divisor."""
    image = normalised(pixels.astype(np.float32), own.images, pixels.dtype)
    pads = [(0, -side % own.network.divisor) for side in pixels.shape[1:]]
    return np.pad(image, [(0, 0), *pads], mode="edge")


def likely(found: Found, least: float) -> Found:
    """The boxes of at least this score."""
    kept = found.scores >= least
    return Found(found.boxes[kept], found.scores[kept], found.labels[kept])
