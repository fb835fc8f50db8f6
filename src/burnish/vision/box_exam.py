"""Box exam: annotated pictures that no network has learned from, and what one scores on them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from burnish import records
from burnish.vision.box_metric import BoxScores, score
from burnish.vision.box_overlay import LEGEND, drawn
from burnish.vision.finding import find, likely
from burnish.vision.inference import Labeller
from burnish.vision.seen_picture import SeenPicture


@dataclass(frozen=True, eq=False)
class BoxExam:
    """Pictures that a network is judged on; `apart`: they are a test set, not a part of the training pictures."""

    shown: tuple[SeenPicture, ...]
    apart: bool
    classes: tuple[str, ...]

    @property
    def about(self) -> str:
        """What it is taken on."""
        if not self.shown:
            return "nothing: no picture is held out"
        return f"{len(self.shown)} {'test pictures' if self.apart else 'pictures held out of the training pictures'}"

    def score(self, labeller: Labeller) -> BoxScores:
        """Average precision on all of them."""
        return score(find(labeller, [one.pixels for one in self.shown]), self.shown, self.classes)

    def pictures(self, labeller: Labeller, count: int) -> tuple[records.Picture, ...]:
        """Some of them, evenly chosen, with what is found and what is true."""
        if not self.shown or not count:
            return ()
        chosen = np.unique(np.linspace(0, len(self.shown) - 1, count).round().astype(int))
        some = [self.shown[number] for number in chosen]
        found = find(labeller, [one.pixels for one in some])
        return tuple(
            records.Picture(
                title=one.name,
                png=drawn(
                    one.pixels, likely(boxes, labeller.inference.least_score), self.classes, one.boxes, one.labels
                ),
                legend=LEGEND,
            )
            for one, boxes in zip(some, found, strict=True)
        )
