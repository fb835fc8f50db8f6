"""Crown tiles: aerial photos with a box around each tree, at half scale, cut into tiles to learn from and to be judged on.

The left of every photo is to learn from, the right to be judged on, so that no tile of one is beside a tile of the other but
at the line between them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from burnish.load.digit_scenes import Made
from burnish.vision.annotations.annotation import Box, Picture
from burnish.vision.annotations.read import read

SIDE = 256  # of a tile, about
SMALLER = 2
LEARNED = 0.65  # share of a photo's width
KEPT = 0.4  # share of a box that a tile must hold; a piece that is less is a crowd, as some would find it and some not
LEAST = 1.0  # pixels of a side, below which a piece is nothing


def tiles(photos: Path, learned: bool) -> Iterator[Made]:
    """Tiles of the annotated photos in a folder, row by row."""
    for number, photo in enumerate(read(photos, "voc").pictures):
        yield from _of_photo(photo, number, learned)


def _of_photo(photo: Picture, number: int, learned: bool) -> Iterator[Made]:
    from PIL import Image

    with Image.open(photo.path) as opened:
        even = (photo.width - photo.width % SMALLER, photo.height - photo.height % SMALLER)
        small = np.asarray(opened.convert("RGB").crop((0, 0, *even)).reduce(SMALLER), np.uint8)
    boxes = [_smaller(box) for box in photo.boxes]
    height, width = small.shape[:2]
    line = round(width * LEARNED)
    for top, rows in _pieces(0, height):
        for left, columns in _pieces(0, line) if learned else _pieces(line, width):
            inside = (cut(box, left, top, columns, rows) for box in boxes)
            name = f"{number}_{top:04}_{left:04}.png"
            yield name, small[top : top + rows, left : left + columns], tuple(box for box in inside if box)


def _smaller(box: Box) -> Box:
    left, top, width, height = (side / SMALLER for side in (box.x, box.y, box.width, box.height))
    return Box(box.label, left, top, width, height, box.crowd)


def _pieces(first: int, end: int) -> list[tuple[int, int]]:
    """Beginning and length of equal pieces; pixels that are left over at the end are left out."""
    count = max(1, round((end - first) / SIDE))
    length = (end - first) // count
    return [(first + number * length, length) for number in range(count)]


def cut(box: Box, left: int, top: int, width: int, height: int) -> Box | None:
    """What a tile at (left, top) has of a box, in its own pixels; None where that is nothing."""
    ends = [max(box.x - left, 0.0), max(box.y - top, 0.0)]
    far = [min(box.x + box.width - left, float(width)), min(box.y + box.height - top, float(height))]
    sides = [far[0] - ends[0], far[1] - ends[1]]
    if min(sides) < LEAST:
        return None
    share = sides[0] * sides[1] / (box.width * box.height)
    return Box(box.label, ends[0], ends[1], sides[0], sides[1], box.crowd or share < KEPT)
