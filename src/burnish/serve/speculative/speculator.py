"""The speculator: between an engine and a draft. It asks the gate, lets the draft guess, judges, and measures all of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from torch import Tensor

from burnish.serve import schedule
from burnish.serve.forward import Forward
from burnish.serve.sampling import Sampling
from burnish.serve.speculative.costs import GuessCosts, StepCosts
from burnish.serve.speculative.draft import Asked, Draft, Guess
from burnish.serve.speculative.gate import LENGTHS, Gate
from burnish.serve.speculative.judge import judge

MOST_TOKENS = 64  # of a step that is measured at the start
TRIED_TOKENS = 32  # of the sequence that a draft is measured with
TRIES = 2


@dataclass
class Counts:
    """What was drafted so far, over all sequences; by place in a round, how many were reached and how many stood."""

    rounds: int = 0
    plain: int = 0
    drafted: int = 0
    stood: int = 0
    written: int = 0  # tokens of rounds
    guessing_seconds: float = 0.0
    round_seconds: float = 0.0
    plain_seconds: float = 0.0
    stood_at: dict[int, int] = field(default_factory=dict)
    tried_at: dict[int, int] = field(default_factory=dict)


class _Round(NamedTuple):
    """The step in progress."""

    began: float
    guessed: float
    sequences: int
    tokens: int
    behind: int


class Speculator:
    """Made before the first request: it measures the target's and the draft's steps, some tenths of a second.

    `fixed`: draft so many tokens always, as most engines do; None: as the gate says.
    """

    def __init__(
        self,
        draft: Draft,
        forward: Forward,
        sequences: int,
        fixed: int | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.draft, self.fixed, self.clock = draft, fixed, clock
        self.counts = Counts()
        steps = StepCosts(_step_seconds(forward, min(MOST_TOKENS, sequences * (1 + LENGTHS[-1])), clock))
        self.gate = Gate(steps, _guess_costs(draft, clock))
        self._guesses: dict[schedule.Sequence, Guess] = {}
        self._round: _Round | None = None
        self._written, self._behind = 0, 0

    def begin(
        self, pieces: list[schedule.Piece], asked_of: Callable[[schedule.Sequence], Asked], plan: schedule.Schedule
    ) -> list[schedule.Piece]:
        """The pieces of a step, with guesses behind them where they are worth it; a step that reads prompts as it is."""
        self._round, self._written, self._guesses = None, 0, {}
        if any(piece.count != 1 or not piece.ends for piece in pieces):
            return pieces
        began, many = self.clock(), len(pieces)
        behind = sum(self.draft.behind(asked_of(piece.sequence)) for piece in pieces) if not self.gate.on else 0
        length = self.fixed if self.fixed is not None else self.gate.next(many, behind)
        if length:
            pieces = self._widened(pieces, [asked_of(piece.sequence) for piece in pieces], length, plan)
        guessed = self.clock()
        self._round = _Round(began, guessed, many, sum(piece.count for piece in pieces), self._behind if length else 0)
        return pieces

    def _widened(
        self, pieces: list[schedule.Piece], asked: list[Asked], length: int, plan: schedule.Schedule
    ) -> list[schedule.Piece]:
        behind = [self.draft.behind(one) for one in asked]
        counts = []
        for one, late in zip(asked, behind, strict=True):
            written = len(one.sequence.tokens) - one.sequence.prompt
            wanted = self.fixed is not None or self.gate.worth(late, one.room, written)
            counts.append(min(length, one.room) if wanted else 0)
        self._behind = sum(late for late, count in zip(behind, counts, strict=True) if count)
        guesses = self.draft.guess(asked, counts)
        if self.draft.free and self.fixed is None:
            most = self.gate.trim(len(pieces), [len(guess.tokens) for guess in guesses])
            guesses = [guess.first(most) for guess in guesses]
        made = []
        for piece, guess in zip(pieces, guesses, strict=True):
            piece = plan.widen(piece, guess.tokens) if guess.tokens else piece
            self._guesses[piece.sequence] = guess.first(len(piece.guesses))
            made.append(piece)
        return made

    def judge(self, piece: schedule.Piece, asked: Asked, scores_KV: Tensor, best: Sequence[int]) -> list[int]:
        """The guesses of a piece that stand and one token more, up to one that ends the sequence."""
        guess = self._guesses[piece.sequence].first(len(scores_KV) - 1)
        tokens = judge(asked, guess, scores_KV, best)
        stood = len(tokens) - 1
        self.gate.judged(len(guess.tokens), stood)
        self.counts.drafted += len(guess.tokens)
        self.counts.stood += stood
        for place in range(min(stood + 1, len(guess.tokens))):
            self.counts.tried_at[place] = self.counts.tried_at.get(place, 0) + 1
        for place in range(stood):
            self.counts.stood_at[place] = self.counts.stood_at.get(place, 0) + 1
        ends = [number for number, token in enumerate(tokens) if token in asked.options.ends]
        tokens = tokens[: ends[0] + 1] if ends else tokens
        self._written += len(tokens)
        return tokens

    def end(self) -> None:
        """The step is over: book what it took."""
        now = self._round
        if now is None:
            return
        ended, guessing = self.clock(), now.guessed - now.began
        if now.tokens == now.sequences:
            self.counts.plain += 1
            self.counts.plain_seconds += ended - now.began
            self.gate.saw_plain(now.sequences, ended - now.guessed)
            self.gate.book(guessing)
            return
        drafted = max(len(guess.tokens) for guess in self._guesses.values())
        written = self._written + sum(not guess.tokens for guess in self._guesses.values())
        self.gate.guesses.add(now.sequences, drafted, now.behind, guessing)
        lost = self.gate.saw_round(now.sequences, now.tokens, written, (guessing, ended - now.guessed), now.behind)
        if self.fixed is None:  # what the gate did not decide is no debt of its own
            self.gate.book(lost)
        self.counts.rounds += 1
        self.counts.written += written
        self.counts.guessing_seconds += guessing
        self.counts.round_seconds += ended - now.began

    def forget(self, sequence: schedule.Sequence) -> None:
        """A sequence has ended."""
        self.gate.written.add(len(sequence.tokens) - sequence.prompt)
        self.draft.forget(sequence)

    def summary(self) -> str:
        """One line: what was drafted, what stood, and why nothing is drafted now where that is so."""
        counts, gate = self.counts, self.gate
        share = f" ({counts.stood / counts.drafted:.0%})" if counts.drafted else ""
        said = f"draft {self.draft.name}: {counts.stood:,} of {counts.drafted:,} guesses stood{share}"
        rounds = f"{counts.rounds:,} rounds, {counts.plain:,} plain steps"
        state = f"on, {gate.length} a round, {gate.speedup:.2f}x expected" if gate.on else f"off: {gate.reason}"
        return f"{said}; {rounds}; {state}"


def _step_seconds(forward: Forward, most: int, clock: Callable[[], float]) -> list[tuple[int, float]]:
    """Seconds of the target's step by the tokens it reads and scores, on pages that are free."""
    found, pages = [], forward.pages
    most = min(most, pages.free * pages.size, forward.runner.config.max_positions)
    tokens = 1
    while tokens <= most:
        needed = pages.needed(tokens)
        held = [pages.take(ahead=needed)]
        while len(held) < needed:
            held.append(pages.take(held[-1], needed - len(held)))
        sequence = schedule.Sequence([0], 1, tokens, pages=held)
        piece = schedule.Piece(sequence, 0, tokens, (0,) * (tokens - 1))
        times = []
        for _ in range(1 + TRIES):
            began = clock()
            forward([piece])
            times.append(clock() - began)
        pages.release(held)
        found.append((tokens, min(times[1:])))
        tokens *= 2
    return found


def _guess_costs(draft: Draft, clock: Callable[[], float]) -> GuessCosts:
    """Seconds of a guess and of a token read, with a sequence of no meaning."""
    short, long = LENGTHS[1], LENGTHS[4]

    def seconds(count: int, known: int) -> float:
        asked = Asked(schedule.Sequence([0] * known, known, 2 * TRIED_TOKENS), Sampling(), {}, np.random.default_rng(0))
        began = clock()
        draft.guess([asked], [count])
        took = clock() - began
        draft.forget(asked.sequence)
        return took

    seconds(short, 2)
    few, many = (min(seconds(count, 2) for _ in range(TRIES)) for count in (short, long))
    one = max(many - few, 0.0) / (long - short)
    read = min(seconds(short, TRIED_TOKENS) for _ in range(TRIES))
    return GuessCosts(max(one, many / long / 2), max(read - few, 0.0) / (TRIED_TOKENS - 2))
