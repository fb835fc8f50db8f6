"""Boxes of real photos through every two forms and back, and broken annotations that are named: bench/results/annotations.json."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from pathlib import Path
from tempfile import TemporaryDirectory

from burnish.load.picture_sets import picture_set
from burnish.vision.annotations.annotation import Annotated
from burnish.vision.annotations.read import read
from burnish.vision.annotations.write import WRITERS, write
from counted import run_tests
from record import record


def apart(one: Annotated, other: Annotated) -> float:
    """The largest difference of a side, pixels; infinite where pictures, labels or crowds differ."""
    largest = 0.0
    for mine, theirs in zip(one.pictures, other.pictures, strict=True):
        named = [[(box.label, box.crowd) for box in picture.boxes] for picture in (mine, theirs)]
        if mine.name != theirs.name or named[0] != named[1]:
            return float("inf")
        for a, b in zip(mine.boxes, theirs.boxes, strict=True):
            sides = zip((a.x, a.y, a.width, a.height), (b.x, b.y, b.width, b.height), strict=True)
            largest = max(largest, *(abs(x - y) for x, y in sides))
    return largest


def main() -> None:
    """From each form into each other one and back to the first, on the tiles of trees that are judged on."""
    trees = read(picture_set("tree-crowns")["test"])
    single = [[box for box in picture.boxes if not box.crowd] for picture in trees.pictures]  # YOLO has no crowds
    whole = [replace(picture, boxes=tuple(boxes)) for picture, boxes in zip(trees.pictures, single, strict=True)]
    trees = Annotated(trees.classes, tuple(whole))
    values: dict[str, float] = {"boxes": sum(len(picture.boxes) for picture in whole), "apart": 0.0, "chains": 0}
    with TemporaryDirectory() as scratch:
        place = Path(scratch)
        for form in WRITERS:
            write(trees, form, place / form)
        for first, second in permutations(WRITERS, 2):
            there = place / f"{first}-{second}"
            write(read(place / first), second, there)
            write(read(there), first, place / f"{there.name}-{first}")
            values["apart"] = max(values["apart"], apart(trees, read(place / f"{there.name}-{first}")))
            values["chains"] += 1
    broken = "tests/unit/test_broken_annotations.py::test_what_is_broken_is_named_in_one_line"
    count, wrong = run_tests("annotations", broken)
    values |= {"broken.named": count - wrong, "broken.wrong": wrong}
    print(record("annotations", values), values)


if __name__ == "__main__":
    main()
