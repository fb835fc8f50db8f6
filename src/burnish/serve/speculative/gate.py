"""The gate: how many tokens to draft in the next round, or none, by what was measured here and now.

Drafting goes on while it is expected to be faster by a margin, from the share of guesses that stood and the seconds of each
kind of step. A ledger bounds what may be lost where that expectation, or a probe of whether it has come true again, is
wrong: rounds are booked by what the same tokens would have cost without, and there is a small share of all time to spend.
"""

from __future__ import annotations

from collections.abc import Sequence

from burnish.serve.speculative.costs import GuessCosts, Mean, StepCosts
from burnish.speculation import break_even, reached

LENGTHS = (1, 2, 3, 4, 5, 7)
MARGIN = 1.03  # times as fast as without, to begin; to go on it need only be faster
BUDGET = 0.008  # of all time, for rounds that turn out to lose
GRACE = 3  # plain steps that may be lost before anything is known, and that gains are saved up to
PROBE = 2  # tokens of a probe
APART = 16  # steps between probes, at least
REFRESH = 32  # rounds after which one plain step is measured again, a quarter of them where the gain is not sure
SURE = 1.25  # times as fast as without
WARM = 2  # plain steps before the first round
LONG, SHORT = 48.0, 12.0  # guesses remembered while drafting, and while not
GUESSED = (0.6, 2.0)  # what a guess is taken to be before any was judged, and how many guesses that is worth
POOLED = 4.0  # guesses that a place of a round borrows from all places
FIRST_LENGTH = 64.0  # tokens that a sequence is taken to write before any has ended


class Acceptance:
    """How often the guess at each place of a round stood where those before it did; old rounds fade."""

    def __init__(self) -> None:
        self.stood: dict[int, float] = {}
        self.tried: dict[int, float] = {}

    def add(self, offered: int, stood: int, memory: float) -> None:
        for place in range(min(stood + 1, offered)):
            tried = self.tried.get(place, 0.0)
            fade = min(1.0, memory / tried) if tried else 1.0
            self.tried[place] = tried * fade + 1
            self.stood[place] = self.stood.get(place, 0.0) * fade + (place < stood)
        for place in self.tried:  # a longer round that did badly once is forgotten, so that it is tried again
            if place >= offered:
                self.tried[place] *= 1 - 1 / memory
                self.stood[place] *= 1 - 1 / memory

    @property
    def pooled(self) -> float:
        """Over all places."""
        guess, weight = GUESSED
        return (sum(self.stood.values()) + guess * weight) / (sum(self.tried.values()) + weight)

    def hazards(self, length: int) -> list[float]:
        pool = self.pooled
        return [
            (self.stood.get(place, 0.0) + POOLED * pool) / (self.tried.get(place, 0.0) + POOLED)
            for place in range(length)
        ]


class Gate:
    """Decides by `steps` and `guesses`, which its owner measures into."""

    def __init__(self, steps: StepCosts, guesses: GuessCosts, longest: int = LENGTHS[-1]) -> None:
        self.steps, self.guesses = steps, guesses
        self.lengths = tuple(length for length in LENGTHS if length <= longest)
        self.acceptance = Acceptance()
        self.on, self.reason, self.length = False, "nothing was measured yet", 0
        self.speedup = 1.0  # expected of the best length
        self.lost, self.total = 0.0, 0.0  # seconds
        self.written = Mean(FIRST_LENGTH, 1)
        self._plain, self._since_probe, self._since_plain = 0, APART, 0
        # sequences that it was last found not to pay for, and the plain steps until then
        self._settled, self._looked = 0, 0

    def expected(self, sequences: int, length: int, acceptance: float | None = None) -> float:
        """Times as fast as without, where each sequence gets `length` guesses."""
        hazards = self.acceptance.hazards(length) if acceptance is None else [acceptance] * length
        return self._speed(sequences, [length] * sequences, sum(reached(hazards)) * sequences, length)

    def _speed(self, sequences: int, lengths: Sequence[int], gained: float, drafted: int) -> float:
        cost = drafted * self.guesses.at(sequences) + self.steps.at(sequences, sequences + sum(lengths))
        return (1 + gained / sequences) * self.steps.plain(sequences) / max(cost, 1e-12)

    def next(self, sequences: int, behind: int = 0) -> int:
        """How many tokens to draft for each of `sequences`; 0: a plain step. `behind`: what must be read beforehand."""
        if self._settled == sequences and self._plain - self._looked < APART:
            return 0  # nothing was learned since it was found not to pay: a plain step costs no thought
        self._settled, self._looked = 0, self._plain
        best = max(self.lengths, key=lambda length: self.expected(sequences, length))
        self.speedup = self.expected(sequences, best)
        allowed = BUDGET * self.total + GRACE * self.steps.plain(sequences)
        if self._plain < WARM:
            return 0
        if self.speedup < (1.0 if self.on else MARGIN):
            self._off(self._why(sequences, best))
        elif self.lost > allowed:
            self._off(
                f"it lost {self.lost / max(self.total, 1e-9):.1%} of the time, though faster by what was measured"
            )
        elif self._since_plain >= (REFRESH if self.speedup > SURE else REFRESH // 4):
            return 0
        else:
            self.on, self.reason, self.length = True, "", best
            return best
        length = self._probe(sequences, behind, allowed)
        self._settled = 0 if length else sequences
        return length

    def _probe(self, sequences: int, behind: int, allowed: float) -> int:
        """A short round where it could be worth something and there is time to lose."""
        length = min(PROBE, self.lengths[-1])
        if self._since_probe < APART or max(self.expected(sequences, k, 1.0) for k in self.lengths) < MARGIN:
            return 0
        cost = length * self.guesses.at(sequences) + self.steps.at(sequences, sequences * (1 + length))
        loss = cost - self.steps.plain(sequences) + behind * self.guesses.reading
        if self.lost + loss > allowed:
            return 0
        self._since_probe = 0
        return length

    def _off(self, reason: str) -> None:
        self.on, self.reason, self.length = False, reason, 0

    def _why(self, sequences: int, length: int) -> str:
        plain = self.steps.plain(sequences)
        draft = self.guesses.at(sequences) / plain
        verify = self.steps.at(sequences, sequences * (1 + length)) / plain
        least = break_even(length, draft, verify)
        costs = f"a drafted token costs {draft:.2f} of a step, verifying {length} costs {verify:.2f}"
        if least is None:
            return f"{costs}: more than {length + 1} tokens of plain steps, whatever is accepted"
        return f"{self.acceptance.pooled:.0%} of guesses stand, and {least:.0%} must: {costs}"

    def trim(self, sequences: int, offered: Sequence[int]) -> int:
        """Of guesses that are made already: how many of each are worth verifying."""
        if not self.on:
            return PROBE
        gains = [0.0, *reached(self.acceptance.hazards(self.lengths[-1]))]
        sums = [0.0]
        for gain in gains[1:]:
            sums.append(sums[-1] + gain)
        found = {0: 1.0}
        for length in self.lengths:
            kept = [min(length, one) for one in offered]
            found[length] = self._speed(sequences, kept, sum(sums[one] for one in kept), 0)
        return max(found, key=lambda length: (found[length], -length))

    def worth(self, behind: int, room: int, written: int) -> bool:
        """Whether a sequence that is `behind` will write enough more to pay for reading it, twice over."""
        if not behind or not self.on:
            return True
        left = min(room, max(self.written.value - written, 1.0))
        gain = self.steps.plain(1) * (1 - 1 / max(self.speedup, 1.0))
        return behind * self.guesses.reading * 2 <= left * gain

    def saw_plain(self, sequences: int, seconds: float) -> None:
        """A plain step was measured."""
        self.steps.add(sequences, sequences, seconds)
        self.total += seconds
        self._plain += 1
        self._since_plain = 0
        self._since_probe += 1

    def saw_round(self, sequences: int, tokens: int, written: int, seconds: tuple[float, float], behind: int) -> float:
        """A round that wrote so many tokens: `tokens` read by the target, `seconds` of guessing and of the step. Seconds it lost.

        Reading what a sequence was behind is no loss where it was found to pay.
        """
        guessing, step = seconds
        self.steps.add(sequences, tokens, step)
        self.total += guessing + step
        self._since_plain += 1
        excused = behind * self.guesses.reading if self.on else 0.0
        return max(guessing - excused, 0.0) + step - written / sequences * self.steps.plain(sequences)

    def book(self, seconds: float) -> None:
        """Lost seconds; gains pay debts back, and are saved up for a few unlucky rounds, no more."""
        self.lost = max(-GRACE * self.steps.plain(1), self.lost + seconds)

    def judged(self, offered: int, stood: int) -> None:
        """A sequence's guesses were judged."""
        self.acceptance.add(offered, stood, LONG if self.on else SHORT)
