"""Classes: how often a guess is right, class by class, and how well vectors of one class lie together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class ClassCounts:
    """Of one class: how many there are, how many were guessed, how many of these rightly."""

    there: int
    guessed: int
    right: int

    @property
    def f1(self) -> float:
        """2 right / (there + guessed): the harmonic mean of precision and recall (van Rijsbergen 1979, chapter 7)."""
        return 2 * self.right / (self.there + self.guessed) if self.there + self.guessed else 0.0


def counted(truth: Sequence[str], guess: Sequence[str]) -> dict[str, ClassCounts]:
    """Counts of every class that is there or was guessed, by name in their order."""
    there, guessed = Counter(truth), Counter(guess)
    right = Counter(a for a, b in zip(truth, guess, strict=True) if a == b)
    return {name: ClassCounts(there[name], guessed[name], right[name]) for name in sorted(there | guessed)}


def accuracy(counts: dict[str, ClassCounts]) -> float:
    """Share of guesses that are right."""
    return sum(c.right for c in counts.values()) / sum(c.there for c in counts.values())


def macro_f1(counts: dict[str, ClassCounts]) -> float:
    """Mean of the classes' f1, each weighing the same."""
    return sum(c.f1 for c in counts.values()) / len(counts)


def nearest_mean(vectors: NDArray[np.floating], truth: Sequence[str]) -> list[str]:
    """The class whose mean is nearest to each vector [N, H] by cosine, the vector itself left out of its class's mean.

    A class of one vector has no mean for it, and is not guessed for it. Of equal ones the first by name counts.
    """
    unit = np.asarray(vectors, dtype=np.float64)
    unit = unit / np.maximum(np.linalg.norm(unit, axis=1, keepdims=True), np.finfo(np.float64).tiny)
    names = sorted(set(truth))
    of = np.array([names.index(name) for name in truth])
    sums = np.stack([unit[of == k].sum(0) for k in range(len(names))])
    sizes = np.bincount(of, minlength=len(names))
    near = unit @ (sums / np.maximum(np.linalg.norm(sums, axis=1, keepdims=True), np.finfo(np.float64).tiny)).T
    for row, own in enumerate(of):
        rest = sums[own] - unit[row]
        length = np.linalg.norm(rest)
        near[row, own] = unit[row] @ rest / length if sizes[own] > 1 and length > 0 else -np.inf
    return [names[k] for k in near.argmax(1)]
