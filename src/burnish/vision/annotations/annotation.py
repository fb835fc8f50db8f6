"""Annotation: boxes of pictures as plain records; absolute pixels, (x, y) the top left corner, 0-based and continuous."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Box:
    """One box; a `crowd` covers many objects, is not learned, and is no mistake where something is found in it."""

    label: str
    x: float
    y: float
    width: float
    height: float
    crowd: bool = False


@dataclass(frozen=True)
class Picture:
    """A picture file of `width` and `height` pixels with its boxes."""

    name: str
    path: Path
    width: int
    height: int
    boxes: tuple[Box, ...]


@dataclass(frozen=True)
class Annotated:
    """Pictures with the classes that their boxes may have, in the order in which they are counted."""

    classes: tuple[str, ...]
    pictures: tuple[Picture, ...]
