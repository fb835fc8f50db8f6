"""Task: what the flow of a vision recipe needs of labelling or of finding boxes, and no more, as protocols."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from burnish.records import Picture
from burnish.vision.inference import Labeller
from burnish.vision.recipe import VisionRecipe


class Scored(Protocol):
    """What a network scores."""

    @property
    def mean(self) -> float:
        """The score that budgets are about, more being better."""
        ...

    @property
    def shown(self) -> Mapping[str, str]:
        """Columns of a report's table, with what stands there."""
        ...

    @property
    def classes(self) -> Mapping[str, float]:
        """The score of each class."""
        ...

    @property
    def named(self) -> Mapping[str, float]:
        """Numbers by the keys that records have them under."""
        ...


class Lessons(Protocol):
    """What there is to learn from, and what is held out to choose the best weights by."""

    @property
    def held(self) -> Sequence[Any]:
        """What is held out."""
        ...

    def batches(self, recipe: VisionRecipe, seed: int) -> Callable[[int], list[Any]]:
        """The micro batches of step n, a function of the seed and n alone."""
        ...

    def score(self, own: Labeller) -> Scored:
        """A network on what is held out."""
        ...


class Exam(Protocol):
    """What no network has learned from, and what it is judged on."""

    @property
    def about(self) -> str:
        """What it is taken on."""
        ...

    def score(self, labeller: Labeller) -> Scored:
        """A network on all of it."""
        ...

    def pictures(self, labeller: Labeller, count: int) -> tuple[Picture, ...]:
        """Some of it with what is found and what is true."""
        ...


class Material(Protocol):
    """The sources of a recipe, found and looked at."""

    @property
    def sides(self) -> tuple[str, ...]:
        """Lines on how much of it is for what."""
        ...

    def settled(self, recipe: VisionRecipe) -> tuple[VisionRecipe, tuple[str, ...]]:
        """The recipe with all that it left open, and a line on each setting that was derived."""
        ...

    def lessons(
        self, recipe: VisionRecipe, progress: Callable[[int, int], None] | None
    ) -> tuple[Lessons, Mapping[str, str]]:
        """What there is to learn from, and hashes of what it is made of."""
        ...

    def exam(self, recipe: VisionRecipe, lessons: Lessons) -> Exam:
        """What the networks of a settled recipe are judged on."""
        ...
