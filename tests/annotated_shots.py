"""Three small pictures of odd sizes, for tests of annotations: one grey, one in a folder of its own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from PIL import Image

from burnish.vision.annotations.annotation import Annotated, Box, Picture

SIZES = ((31, 17), (640, 481), (5, 7))
NAMES = ("a.png", "b.jpg", "deep/c.png")


def write_pictures(folder: Path) -> None:
    (folder / "deep").mkdir(parents=True)
    for name, size, mode in zip(NAMES, SIZES, ("RGB", "L", "RGB"), strict=True):
        Image.new(mode, size).save(folder / name)


def annotated(shots: Path, boxes: list[list[Box]]) -> Annotated:
    """The pictures in `shots` with boxes of two classes, one of two words."""
    rows = zip(NAMES, SIZES, boxes, strict=True)
    return Annotated(("car", "old tram"), tuple(Picture(n, shots / n, *size, tuple(own)) for n, size, own in rows))


def renamed(made: Annotated, names: dict[str, str]) -> Annotated:
    pictures = [
        replace(one, boxes=tuple(replace(box, label=names.get(box.label, box.label)) for box in one.boxes))
        for one in made.pictures
    ]
    return Annotated(tuple(names.get(name, name) for name in made.classes), tuple(pictures))
