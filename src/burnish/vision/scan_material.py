"""Scan material: the labelled scans of a segmenter's recipe, split by patient, looked at and prepared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from burnish.vision.exam import ScanExam, exam_of
from burnish.vision.fingerprint import fingerprint_of, settle
from burnish.vision.prepared import Case, prepare
from burnish.vision.recipe import VisionRecipe
from burnish.vision.scan_lessons import ScanLessons, lessons_of
from burnish.vision.sources import Split, split_of
from burnish.vision.task import Lessons


@dataclass(frozen=True)
class ScanMaterial:
    """Scans of a recipe."""

    split: Split

    @classmethod
    def of(cls, recipe: VisionRecipe) -> ScanMaterial:
        """Found where the recipe says. Raises UserError where there are none."""
        return cls(split_of(recipe.images, recipe.train.seed))

    @property
    def sides(self) -> tuple[str, ...]:
        """How many scans are for what."""
        split = self.split
        sides = (("train", split.train), ("validation", split.validation), ("test", split.test))
        return (", ".join(f"{len(entries)} scans to {name}" for name, entries in sides if entries),)

    def settled(self, recipe: VisionRecipe) -> tuple[VisionRecipe, tuple[str, ...]]:
        """What is left open follows from the training scans."""
        return settle(recipe, fingerprint_of(self.split.train))

    def lessons(
        self, recipe: VisionRecipe, progress: Callable[[int, int], None] | None
    ) -> tuple[ScanLessons, dict[str, str]]:
        """Training and validation scans, resampled and normalised once."""
        images, dimensions = recipe.images, recipe.network.dimensions
        train, own = prepare(self.split.train, images, dimensions, progress)
        validation, other = prepare(self.split.validation, images, dimensions, progress)
        return lessons_of(recipe, train, validation), {"train": own, "validation": other}

    def exam(self, recipe: VisionRecipe, lessons: Lessons) -> ScanExam:
        """Test scans in their own grids, else what is held out."""
        held = [case for case in lessons.held if isinstance(case, Case)]
        return exam_of(recipe, self.split.test, held)
