"""Advice on a draft: from what was measured, whether it pays for so many sequences at once, and what would have to change.

With A tokens gained by the guesses of a round, c and V the cost of a guess and of verifying in plain steps, and o the share of
rounds in which there is a guess: a round of k gives 1 + o A tokens and costs k c + (1 - o) + o V plain steps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from burnish.serve.speculative.gate import MARGIN
from burnish.speculation import break_even, expected_tokens

SURE = 2.0  # standard errors either way


@dataclass(frozen=True)
class Stood:
    """How many guesses were reached at each place of a round, how many of them stood, and the share of rounds with a guess."""

    tried: Sequence[int]
    stood: Sequence[int]
    offered: float = 1.0

    @property
    def guesses(self) -> int:
        """All that were reached."""
        return sum(self.tried)

    @property
    def pooled(self) -> float:
        """Share of the reached guesses that stood, over all places; 0 where there were none."""
        return sum(self.stood) / self.guesses if self.guesses else 0.0

    def hazards(self, length: int, errors: float = 0.0) -> list[float]:
        """Share that stood at each place, by so many standard errors too low or too high; a place never reached has the pooled."""
        found = []
        for place in range(length):
            tried = self.tried[place] if place < len(self.tried) else 0
            share = self.stood[place] / tried if tried else self.pooled
            count = max(tried or self.guesses, 1)
            # as if one more had stood and one had fallen, so that all of a few are no certainty (Agresti and Coull 1998)
            near = (share * count + 1) / (count + 2)
            found.append(min(1.0, max(0.0, share + errors * math.sqrt(near * (1 - near) / count))))
        return found


@dataclass(frozen=True)
class Costs:
    """Seconds with so many sequences at once: of a plain step, and by guesses a round of all guessing and of verifying."""

    rows: int
    step: float
    guessing: Mapping[int, float]
    verifying: Mapping[int, float]

    def draft(self, length: int) -> float:
        """Plain steps that one of `length` guesses takes."""
        return self.guessing[length] / length / self.step

    def verify(self, length: int) -> float:
        """Plain steps that verifying `length` guesses of each takes."""
        return self.verifying[length] / self.step


@dataclass(frozen=True)
class Advice:
    """For so many sequences at once: guesses a round, 0 for none, and what they gain; `low` and `high` by few guesses judged.

    `least`: the acceptance that `tried` guesses a round, the best number there is, must have; `dearest`: what a guess may cost in
    plain steps for any number to pay, at the acceptance there is. None where nothing does.
    """

    rows: int
    length: int
    speedup: float
    low: float
    high: float
    tried: int
    tokens: float
    draft: float
    verify: float
    least: float | None
    dearest: float | None
    measured: float | None = None
    speeds: Mapping[int, float] = field(default_factory=dict)

    @property
    def pays(self) -> bool:
        """Whether anything is drafted."""
        return self.length > 0

    @property
    def sure(self) -> bool:
        """Whether more text would not change it."""
        return self.low > 1 if self.pays else self.high < MARGIN


def speed(stood: Stood, costs: Costs, length: int, errors: float = 0.0) -> float:
    """Times as fast as without, of `length` guesses a round."""
    gained = stood.offered * (expected_tokens(stood.hazards(length, errors), length) - 1)
    cost = length * costs.draft(length) + 1 + stood.offered * (costs.verify(length) - 1)
    return (1 + gained) / cost


def advise(stood: Stood, costs: Costs) -> Advice:
    """What to do with so many sequences at once."""
    speeds = {length: speed(stood, costs, length) for length in costs.verifying}
    best = max(speeds, key=lambda length: (speeds[length], -length))
    pays = speeds[best] >= MARGIN
    low, high = (speed(stood, costs, best, errors) for errors in (-SURE, SURE))
    if not pays:  # with more acceptance another number may be the best one
        high = max(speed(stood, costs, length, SURE) for length in speeds)
    dearest = max(_dearest(stood, costs, length) for length in speeds)
    offered = max(stood.offered, 1e-9)
    asked = {length: break_even(length, costs.draft(length) / offered, costs.verify(length)) for length in speeds}
    found = {length: least for length, least in asked.items() if least is not None}
    easiest = min(found, key=lambda length: found[length], default=None)
    shown = best if pays or easiest is None else easiest
    return Advice(
        rows=costs.rows,
        length=best if pays else 0,
        speedup=speeds[best] if pays else 1.0,
        low=low,
        high=high,
        tried=shown,
        tokens=1 + stood.offered * (expected_tokens(stood.hazards(shown), shown) - 1),
        draft=costs.draft(shown),
        verify=costs.verify(shown),
        least=asked[shown],
        dearest=dearest if dearest > 0 else None,
        speeds=speeds,
    )


def _dearest(stood: Stood, costs: Costs, length: int) -> float:
    """Plain steps that a guess may cost at `length` guesses a round; below 0 where not even free ones pay."""
    gained = expected_tokens(stood.hazards(length), length) - 1
    return stood.offered * (gained - (costs.verify(length) - 1)) / length
