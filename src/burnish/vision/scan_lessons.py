"""Scan lessons: labelled scans as what a segmenter learns from, without the slices that are held out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from burnish.errors import UserError
from burnish.vision.image_batch import ImageBatch
from burnish.vision.inference import Labeller, label_image
from burnish.vision.metric import Scores, scored
from burnish.vision.patches import Pool, batches_of, pool_of
from burnish.vision.prepared import Case
from burnish.vision.recipe import VisionRecipe

BLOCK = 4  # neighbouring slices that are held out together


@dataclass(frozen=True, eq=False)
class ScanLessons:
    """What there is to learn from, and the parts of scans that the best weights are chosen by."""

    pool: Pool
    held: tuple[Case, ...]
    classes: tuple[str, ...]

    def batches(self, recipe: VisionRecipe, seed: int) -> Callable[[int], list[ImageBatch]]:
        """The micro batches of step n."""
        return batches_of(recipe, self.pool, seed)

    def score(self, own: Labeller) -> Scores:
        """A network on what is held out."""
        return score_cases(own, self.held, self.classes)


def lessons_of(recipe: VisionRecipe, train: Sequence[Case], validation: Sequence[Case]) -> ScanLessons:
    """Training scans without the slices that are held out, and what is held out."""
    slices, held = [], list(validation)
    for case in train:
        own, kept = sliced(case, recipe)
        slices.append(own)
        if kept.size:
            held.append(part_of(case, kept))
    return ScanLessons(pool_of(train, slices, recipe.train.seed), tuple(held), tuple(recipe.images.classes))


def sliced(case: Case, recipe: VisionRecipe) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Indices of the first axis to learn from, and those held out: whole blocks of neighbours, evenly over the volume."""
    count, share, wanted = case.label.shape[0], recipe.images.validation_slices, recipe.images.train_slices
    block = np.arange(count) // BLOCK
    out = np.floor((block + 1) * share + 0.5) > np.floor(block * share + 0.5)
    own, held = np.flatnonzero(~out), np.flatnonzero(out)
    if wanted:
        marked = own[np.asarray(case.label)[own].reshape(len(own), -1).any(axis=1)]
        if not len(marked):
            raise UserError(f"{case.name}: none of its slices holds a label; images.train_slices takes those that do")
        own = np.unique(marked[np.linspace(0, len(marked) - 1, min(wanted, len(marked))).round().astype(int)])
    return own, held


def part_of(case: Case, slices: NDArray[np.int64]) -> Case:
    """Slices of a case as a case of their own."""
    return Case(case.name, np.asarray(case.image)[:, slices], np.asarray(case.label)[slices], case.affine, case.spacing)


def score_cases(own: Labeller, cases: Sequence[Case], classes: Sequence[str], surfaces: bool = False) -> Scores:
    """Scores of cases in the network's own space."""
    pairs = ((label_image(own, np.asarray(case.image)), np.asarray(case.label), case.spacing) for case in cases)
    return scored(pairs, classes, surfaces)
