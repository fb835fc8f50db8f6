"""Table: the boxes of each class, as a person reads it before anything learns from them."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from burnish.vision.annotations.annotation import Annotated

HEADS = ("class", "boxes", "pictures", "crowds", "median size", "smallest side")


def table(annotated: Annotated) -> Iterator[str]:
    """Lines: a head, then a class each, in their order."""
    rows = [HEADS, *(_row(annotated, name) for name in annotated.classes)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADS))]
    for row in rows:
        name, *figures = row
        cells = (f"{figure:>{width}}" for figure, width in zip(figures, widths[1:], strict=True))
        yield "  ".join((f"{name:<{widths[0]}}", *cells))


def _row(annotated: Annotated, name: str) -> tuple[str, ...]:
    inside = [[box for box in picture.boxes if box.label == name] for picture in annotated.pictures]
    boxes = [box for some in inside for box in some if not box.crowd]
    crowds = sum(map(len, inside)) - len(boxes)
    pictures = sum(any(not box.crowd for box in some) for some in inside)
    if not boxes:
        return (name, "0", "0", str(crowds), "", "")
    middle = f"{median(box.width for box in boxes):.0f} x {median(box.height for box in boxes):.0f}"
    smallest = min(min(box.width, box.height) for box in boxes)
    return (name, str(len(boxes)), str(pictures), str(crowds), middle, f"{smallest:.3g}")
