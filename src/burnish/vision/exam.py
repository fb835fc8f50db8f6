"""Exam: labelled scans that no network has learned from, and the scores of one on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from burnish.records import Picture
from burnish.vision.inference import Labeller, label_image, label_scan
from burnish.vision.metric import Scores, scored
from burnish.vision.overlay import pictures_of
from burnish.vision.prepared import Case, as_classes, image_of, read_pair, space_of
from burnish.vision.recipe import VisionRecipe
from burnish.vision.scan_lessons import score_cases
from burnish.vision.scans import Scan
from burnish.vision.sources import Entry


@dataclass(frozen=True, eq=False)
class ScanExam:
    """Scans that a network is judged on in their own grids, with their true classes; without any, cases that were held out."""

    scans: tuple[tuple[str, Scan, NDArray[np.int64]], ...]
    cases: tuple[Case, ...]
    classes: tuple[str, ...]

    @property
    def about(self) -> str:
        """What it is taken on."""
        if self.scans:
            return f"{', '.join(name for name, _, _ in self.scans)}: unseen, in the grid of the file"
        return "held-out parts of the training scans" if self.cases else "nothing: no scan is held out"

    def score(self, labeller: Labeller) -> Scores:
        """Scores of a network on all of them."""
        if not self.scans:
            return score_cases(labeller, self.cases, self.classes, surfaces=True)
        pairs = ((label_scan(labeller, scan), true, scan.spacing) for _, scan, true in self.scans)
        return scored(pairs, self.classes, surfaces=True)

    def pictures(self, labeller: Labeller, count: int) -> tuple[Picture, ...]:
        """Slices of the first scan with what is found and what is true."""
        if self.scans:
            name, scan, true = self.scans[0]
            space = space_of(scan, labeller.images, labeller.network.dimensions)
            found = space.labels(label_scan(labeller, scan))
            return pictures_of(name, image_of(scan, space, labeller.images), found, space.labels(true), count)
        if self.cases:
            case = self.cases[0]
            image, true = np.asarray(case.image), np.asarray(case.label)
            return pictures_of(case.name, image, label_image(labeller, image), true, count)
        return ()


def exam_of(recipe: VisionRecipe, entries: Sequence[Entry], held: Sequence[Case]) -> ScanExam:
    """The exam of labelled scans, or of held-out cases where there are none."""
    made = []
    for entry in entries:
        scan, values = read_pair(entry)
        made.append((entry.name, scan, as_classes(values, recipe.images.classes)))
    return ScanExam(tuple(made), tuple(held), tuple(recipe.images.classes))
