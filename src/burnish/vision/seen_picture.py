"""SeenPicture: an annotated picture in memory, its boxes as arrays, its labels by the classes of a recipe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from burnish.errors import UserError
from burnish.vision.annotations.annotation import Picture

COLOURS = {1: "L", 3: "RGB"}
Pixels = NDArray[np.uint8]
GREY = ("L", "1", "I;16", "I", "F", "LA")


@dataclass(frozen=True, eq=False)
class SeenPicture:
    """Pixels uint8 [C, H, W]; boxes float32 [N, 4] (left, top, right, bottom), labels [N] from 0, crowd [N]."""

    name: str
    path: Path
    pixels: NDArray[np.uint8]
    boxes: NDArray[np.float32]
    labels: NDArray[np.int64]
    crowd: NDArray[np.bool_]

    @property
    def size(self) -> tuple[int, int]:
        """Height and width."""
        return self.pixels.shape[1], self.pixels.shape[2]


def read_pixels(path: Path, channels: int) -> NDArray[np.uint8]:
    """Pixels [C, H, W] of a picture file. Raises UserError for a file that is none."""
    from PIL import Image

    try:
        with Image.open(path) as opened:
            array = np.asarray(opened.convert(COLOURS[channels]), np.uint8)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise UserError(f"{path}: cannot be read as a picture ({' '.join(str(error).split())[:120]})") from None
    return np.ascontiguousarray(array[None] if channels == 1 else array.transpose(2, 0, 1))


def is_grey(path: Path) -> bool:
    """Whether a picture file has no colours. Raises UserError for a file that is none."""
    from PIL import Image

    try:
        with Image.open(path) as opened:
            return opened.mode in GREY
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise UserError(f"{path}: cannot be read as a picture ({' '.join(str(error).split())[:120]})") from None


def seen(picture: Picture, classes: Sequence[str], channels: int) -> SeenPicture:
    """A picture read. Raises UserError for a class that the recipe does not have."""
    known = {name: number for number, name in enumerate(classes)}
    if other := [box.label for box in picture.boxes if box.label not in known]:
        raise UserError(f"{picture.path}: has a box of class {other[0]!r}; images.classes has {', '.join(classes)}")
    rows = [(box.x, box.y, box.x + box.width, box.y + box.height) for box in picture.boxes]
    return SeenPicture(
        picture.name,
        picture.path,
        read_pixels(picture.path, channels),
        np.asarray(rows, np.float32).reshape(-1, 4),
        np.asarray([known[box.label] for box in picture.boxes], np.int64),
        np.asarray([box.crowd for box in picture.boxes], np.bool_),
    )
