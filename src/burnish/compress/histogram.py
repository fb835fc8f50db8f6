"""Histogram of magnitudes that grows with what it sees and comes out the same whatever the order of the batches.

The bins cover 0 to a power of two. A larger value doubles the range by adding up neighbouring bins. A bin's width is a power of
two as well, so that dividing by it is exact and the sum of two neighbours is what one bin of twice the width would have counted.

Tokens of another size are counted apart, by the power of two that their mean square lies below: the first token of a text is often
many times as large as all others, and what reads a norm sees each token on its own scale.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

BINS = 1 << 14  # at least half of them lie below the largest value, which may be hundreds of times a usual one
LEAST = -100  # exponent of the smallest range, and of the smallest mean square that is told apart from smaller ones
Counts: TypeAlias = NDArray[np.int64]
Values: TypeAlias = NDArray[np.float64]


@dataclass
class Histogram:
    """Counts of |x|: bin b holds values of b * width up to, but not including, (b + 1) * width, with width = 2^exponent / BINS.

    `sized`: exponent of a token's mean square -> counts. `largest` is the largest magnitude itself.
    """

    exponent: int = LEAST
    largest: float = 0.0
    sized: dict[int, Counts] = field(default_factory=dict)

    @property
    def width(self) -> float:
        """Width of a bin."""
        return math.ldexp(1.0, self.exponent) / BINS

    @property
    def counts(self) -> Counts:
        """Counts of all tokens [BINS]."""
        return sum(self.sized.values(), np.zeros(BINS, dtype=np.int64))

    @property
    def seen(self) -> int:
        """How many values were counted."""
        return int(self.counts.sum())

    def add(self, values_TI: Tensor) -> None:
        """Count the magnitudes of tokens [T, I]. Raises ValueError where one is not finite."""
        if not values_TI.numel():
            return
        magnitudes = values_TI.detach().abs().float()
        largest = float(magnitudes.max())
        if not math.isfinite(largest):
            raise ValueError("a value that is not finite")
        if largest:  # zeros need no range
            self._reach(math.frexp(largest)[1])
        self.largest = max(self.largest, largest)
        sizes_T = torch.frexp(magnitudes.double().square().mean(1)).exponent.long().clamp(min=LEAST)
        places = (magnitudes / self.width).long()
        for size, counts in _apart(sizes_T, places):
            self.sized[size] = self.sized.get(size, 0) + counts

    def _reach(self, exponent: int) -> None:
        """Double the range until it is 2^exponent at least."""
        steps = exponent - self.exponent
        if steps <= 0:
            return
        merged = 1 << min(steps, BINS.bit_length() - 1)  # all bins in one: a wider range adds nothing more to merge
        for size, counts in self.sized.items():
            kept = counts.reshape(-1, merged).sum(1)
            self.sized[size] = np.concatenate([kept, np.zeros(BINS - len(kept), dtype=np.int64)])
        self.exponent = exponent

    def used(self, relative: bool = False, bins: int = BINS) -> tuple[Values, Values]:
        """(counts, edges) up to the largest value's bin, of `bins` over the whole range, a power of two of them.

        `relative`: each token's counts are divided by its mean square, to a power of two.
        """
        counts, width = np.zeros(BINS), self.width * (BINS // bins)
        for size in sorted(self.sized):
            counts += self.sized[size] * (math.ldexp(1.0, -size) if relative else 1.0)
        last = min(int(self.largest / width), bins - 1) + 1
        return counts.reshape(bins, -1).sum(1)[:last], np.arange(last + 1, dtype=np.float64) * width


def _apart(sizes_T: Tensor, places: Tensor) -> Iterator[tuple[int, Counts]]:
    """The counts of each size of token."""
    least = int(sizes_T.min())
    ranks_T = sizes_T - least
    joint = torch.bincount((places + ranks_T[:, None] * BINS).flatten(), minlength=(int(ranks_T.max()) + 1) * BINS)
    for rank, counts in enumerate(joint.view(-1, BINS).cpu().numpy()):
        if counts.any():
            yield least + rank, counts
