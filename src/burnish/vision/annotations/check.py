"""Check: what was read of annotation files becomes pictures with boxes, or a line for each thing that cannot be right."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from burnish.vision.annotations.annotation import Annotated, Box, Picture
from burnish.vision.annotations.sheet import Broken, Sheet, Sheets, said, size_of

OUTSIDE = 0.05  # pixels that a rounded number may stand outside of its picture


def checked(read: Sheets) -> tuple[Annotated, tuple[str, ...]]:
    """Pictures with the boxes that are right, and what is wrong, one line each."""
    occurring = dict.fromkeys(sorted({box.label for sheet in read.sheets for _, box in sheet.rows}))
    classes = tuple(occurring) if read.classes is None else read.classes
    problems = list(read.problems)
    made: list[Picture] = []
    seen: dict[Path, Path] = {}
    for sheet in read.sheets:
        if sheet.path in seen:
            first = "too" if seen[sheet.path] == sheet.file else f"and {seen[sheet.path]}"
            problems.append(said(sheet.file, sheet.name, f"is annotated twice, here {first}"))
            continue
        seen[sheet.path] = sheet.file
        try:
            width, height = size_of(sheet.path)
            if sheet.size not in (None, (width, height)):
                raise Broken(f"the size is given as {_by(*sheet.size)}, the picture has {_by(width, height)} pixels")
        except Broken as error:
            problems.append(said(sheet.file, sheet.name, str(error)))
            continue
        boxes = _boxes(sheet, (width, height), classes, problems)
        made.append(Picture(sheet.name, sheet.path, width, height, boxes))
    return Annotated(classes, tuple(made)), tuple(problems)


def _boxes(sheet: Sheet, size: tuple[int, int], classes: Collection[str], problems: list[str]) -> tuple[Box, ...]:
    good: list[Box] = []
    for where, box in sheet.rows:
        wrong = wrong_with(box, size, classes)
        if wrong:
            problems.append(said(sheet.file, sheet.name, where, wrong))
        else:
            good.append(box)
    return tuple(good)


def wrong_with(box: Box, size: tuple[int, int], classes: Collection[str]) -> str:
    """What cannot be right of a box in a picture of `size` (width, height); "" where nothing."""
    if box.label not in classes:
        return f"class {box.label!r} is none of {', '.join(classes) or 'none'}"
    if box.width <= 0 or box.height <= 0:
        return f"has {'no' if box.width == 0 or box.height == 0 else 'a negative'} area, {_by(box.width, box.height)}"
    right, bottom = box.x + box.width, box.y + box.height
    if box.x < -OUTSIDE or box.y < -OUTSIDE or right > size[0] + OUTSIDE or bottom > size[1] + OUTSIDE:
        return f"({box.x:g}, {box.y:g}) to ({right:g}, {bottom:g}) is not inside of the picture, {_by(*size)}"
    return ""


def _by(width: float, height: float) -> str:
    return f"{width:g} x {height:g}"
