"""What a draft is: whatever guesses the next tokens of sequences. What it guesses wrong costs time, never correctness."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from torch import Tensor

from burnish.serve import schedule
from burnish.serve.sampling import Sampling


class Asked(NamedTuple):
    """A sequence to guess for: its tokens, options, how often it has written what, and its own random numbers."""

    sequence: schedule.Sequence
    options: Sampling
    written: Mapping[int, int]
    draw: np.random.Generator

    @property
    def room(self) -> int:
        """Most guesses that can be of use: one token is the target's own."""
        return max(0, self.sequence.most - len(self.sequence.tokens) - 1)


@dataclass(frozen=True)
class Guess:
    """Tokens in their order, and for each the probabilities [V] it was drawn by; None where nothing was drawn."""

    tokens: tuple[int, ...] = ()
    drawn: tuple[Tensor, ...] | None = None

    def first(self, count: int) -> Guess:
        """Only so many of them."""
        return Guess(self.tokens[:count], None if self.drawn is None else self.drawn[:count])


class Draft(Protocol):
    """A way of guessing. `free`: whether a guess costs next to nothing, so that more may be made than are used."""

    name: str
    free: bool

    def guess(self, asked: Sequence[Asked], counts: Sequence[int]) -> list[Guess]:
        """At most so many guesses for each sequence; fewer, or none, where it has no idea."""
        ...

    def behind(self, asked: Asked) -> int:
        """Known tokens it must read before it can guess, beyond those of the last round."""
        ...

    def forget(self, sequence: schedule.Sequence) -> None:
        """A sequence has ended."""
        ...
