"""What steps cost, as measured: seconds of a target's step by the tokens that it reads, of a guess by the sequences guessed for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

FADING = 0.1  # weight of a new measurement among many
OUTLIER = 3.0  # times what was known before; more is taken for somebody else's


@dataclass
class Mean:
    """A mean that follows: of the first measurements evenly, then the newer the more."""

    value: float = 0.0
    count: int = 0

    def add(self, value: float) -> None:
        self.count += 1
        if self.count > 3:
            value = min(value, OUTLIER * self.value)
        self.value += (value - self.value) * max(1 / self.count, FADING)


@dataclass
class Line:
    """Straight lines through measured points; beyond the last in proportion to it."""

    points: dict[int, float] = field(default_factory=dict)

    def at(self, place: int) -> float:
        if place in self.points:
            return self.points[place]
        below = max((p for p in self.points if p < place), default=None)
        above = min((p for p in self.points if p > place), default=None)
        if below is None:
            return self.points[above] if above is not None else 1.0
        if above is None:
            return self.points[below] * place / below
        share = (place - below) / (above - below)
        return self.points[below] + share * (self.points[above] - self.points[below])


class StepCosts:
    """Seconds of a step with so many sequences that reads so many tokens.

    What was measured at the start gives the shape; what is measured while running its size, for each number of sequences:
    their contexts are longer by then, and a step has more to do than a model.
    """

    def __init__(self, first: Iterable[tuple[int, float]] = ()) -> None:
        self.first = Line(dict(first))
        self.seen: dict[int, dict[int, Mean]] = {}

    def add(self, sequences: int, tokens: int, seconds: float) -> None:
        self.seen.setdefault(sequences, {}).setdefault(tokens, Mean()).add(seconds)

    def plain(self, sequences: int) -> float:
        """Seconds of a step that writes one token of each."""
        return self.at(sequences, sequences)

    def at(self, sequences: int, tokens: int) -> float:
        own = self.seen.get(sequences)
        if own is None:
            if not self.seen:
                return self.first.at(tokens)
            near = min(self.seen, key=lambda known: abs(known - sequences))
            return self.first.at(tokens) * self._ratio(self.seen[near], tokens)
        if tokens in own:
            return own[tokens].value
        return self.first.at(tokens) * self._ratio(own, tokens)

    def _ratio(self, own: dict[int, Mean], tokens: int) -> float:
        """Measured over first measured, at the nearest numbers of tokens."""
        ratios = {place: mean.value / self.first.at(place) for place, mean in own.items()}
        below = max((place for place in ratios if place <= tokens), default=None)
        above = min((place for place in ratios if place >= tokens), default=None)
        if below is None or above is None or below == above:
            return ratios[below if below is not None else above]  # type: ignore[index]
        share = (tokens - below) / (above - below)
        return ratios[below] + share * (ratios[above] - ratios[below])


class GuessCosts:
    """Seconds of one guess for each of so many sequences at once, and of a known token that is read beforehand."""

    def __init__(self, one: float, reading: float) -> None:
        self.one, self.reading = one, reading
        self.seen: dict[int, Mean] = {}

    def add(self, sequences: int, guesses: int, behind: int, seconds: float) -> None:
        """One round; what reading the tokens behind took is estimated."""
        spent = seconds - behind * self.reading
        if behind and sequences in self.seen and spent > guesses * self.seen[sequences].value:
            self.reading = 0.7 * self.reading + 0.3 * (seconds - guesses * self.seen[sequences].value) / behind
        elif not behind:
            self.seen.setdefault(sequences, Mean()).add(seconds / guesses)

    def at(self, sequences: int) -> float:
        if not self.seen:
            return self.one
        return self.seen[min(self.seen, key=lambda known: abs(known - sequences))].value
