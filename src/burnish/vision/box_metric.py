"""The metric of detection: COCO's average precision (Lin et al. 2014, arXiv 1405.0312), by pycocotools.

A class that no picture has a box of counts in no mean; a box found in a crowd of its class is no mistake.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from burnish.vision.boxes import Found

ABSENT = -1  # pycocotools' precision of a class without truth
AT_HALF = 0  # of its overlaps, 0.5 to 0.95
ALL_AREAS, MOST = 0, 2  # of its ranges of area, and of its limits of boxes a picture: 100


class Truth(Protocol):
    """Boxes [N, 4] (left, top, right, bottom), labels [N] from 0, crowd [N] of one picture."""

    @property
    def boxes(self) -> NDArray[np.float32]: ...

    @property
    def labels(self) -> NDArray[np.int64]: ...

    @property
    def crowd(self) -> NDArray[np.bool_]: ...


@dataclass(frozen=True)
class BoxScores:
    """Mean average precision over overlaps of 0.5 to 0.95, at 0.5 alone, and of each class that has boxes."""

    map: float
    map50: float
    each: dict[str, float] = field(default_factory=dict)

    @property
    def mean(self) -> float:
        """What budgets are about."""
        return self.map

    @property
    def shown(self) -> dict[str, str]:
        """Columns of a report."""
        return {"mAP": f"{self.map:.4f}", "mAP50": f"{self.map50:.4f}"}

    @property
    def classes(self) -> dict[str, float]:
        """Average precision of each class."""
        return self.each

    @property
    def named(self) -> dict[str, float]:
        """Numbers by the keys of records."""
        return {"map": self.map, "map50": self.map50}


def score(predicted: Sequence[Found], truth: Sequence[Truth], classes: Sequence[str]) -> BoxScores:
    """Scores of what was found in pictures, held against the truth of the same pictures in the same order."""
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    true_rows = [row for number, one in enumerate(truth, start=1) for row in _true(number, one)]
    found_rows = [row for number, one in enumerate(predicted, start=1) for row in _found(number, one)]
    with contextlib.redirect_stdout(io.StringIO()):  # it prints as it goes
        sides = [_indexed(COCO(), rows, len(truth), classes) for rows in (true_rows, found_rows)]
        judge: Any = COCOeval(*sides, iouType="bbox")
        judge.evaluate()
        judge.accumulate()
    precision = judge.eval["precision"][:, :, :, ALL_AREAS, MOST]  # [overlaps, recalls, classes]
    known = [number for number in range(len(classes)) if (precision[:, :, number] > ABSENT).any()]
    each = {classes[number]: float(precision[:, :, number].mean()) for number in known}
    at_half = [float(precision[AT_HALF, :, number].mean()) for number in known]
    return (
        BoxScores(float(np.mean(list(each.values()))), float(np.mean(at_half)), each) if each else BoxScores(0.0, 0.0)
    )


def _indexed(side: Any, rows: list[dict[str, Any]], pictures: int, classes: Sequence[str]) -> Any:
    for number, row in enumerate(rows, start=1):
        row["id"] = number
    side.dataset = {
        "images": [{"id": number} for number in range(1, pictures + 1)],
        "categories": [{"id": number, "name": name} for number, name in enumerate(classes, start=1)],
        "annotations": rows,
    }
    side.createIndex()
    return side


def _row(picture: int, box: NDArray[np.float32], label: int) -> dict[str, Any]:
    left, top, right, bottom = (float(side) for side in box)
    sides = (right - left, bottom - top)
    return {"image_id": picture, "category_id": label + 1, "bbox": [left, top, *sides], "area": sides[0] * sides[1]}


def _true(picture: int, one: Truth) -> list[dict[str, Any]]:
    rows = zip(one.boxes, one.labels.tolist(), one.crowd.tolist(), strict=True)
    return [_row(picture, box, label) | {"iscrowd": int(crowd)} for box, label, crowd in rows]


def _found(picture: int, one: Found) -> list[dict[str, Any]]:
    rows = zip(one.boxes, one.labels.tolist(), one.scores.tolist(), strict=True)
    return [_row(picture, box, label) | {"score": score, "iscrowd": 0} for box, label, score in rows]
