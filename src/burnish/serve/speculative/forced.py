"""A draft whose acceptance and cost are set: for measuring what speculation gains and what a gate makes of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from burnish.serve import schedule
from burnish.serve.speculative.draft import Asked, Guess


def spin(seconds: float) -> None:
    """Be busy for so long, as a draft would be."""
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


class ForcedDraft:
    """Guesses what comes next in `texts`, by prompt, rightly with probability `acceptance`, and takes `seconds` a guess.

    Both may be changed while it runs. One call guesses for all sequences at once, as a model does.
    """

    name, free = "forced", False

    def __init__(
        self,
        texts: Mapping[tuple[int, ...], Sequence[int]],
        acceptance: float,
        seconds: float,
        spend: Callable[[float], None] = spin,
        seed: int = 0,
    ) -> None:
        self.texts, self.acceptance, self.seconds, self.spend = texts, acceptance, seconds, spend
        self._draw = np.random.default_rng(seed)

    def guess(self, asked: Sequence[Asked], counts: Sequence[int]) -> list[Guess]:
        self.spend(self.seconds * max(counts))
        return [self._one(one.sequence, count) for one, count in zip(asked, counts, strict=True)]

    def _one(self, sequence: schedule.Sequence, count: int) -> Guess:
        tokens = sequence.tokens
        known = self.texts.get(tuple(tokens[: sequence.prompt]), ())
        right = known[len(tokens) - sequence.prompt :][:count]
        stands = self._draw.random(len(right)) < self.acceptance
        return Guess(tuple(token if fine else token ^ 1 for token, fine in zip(right, stands, strict=True)))

    def behind(self, asked: Asked) -> int:
        return 0

    def forget(self, sequence: schedule.Sequence) -> None:
        pass
