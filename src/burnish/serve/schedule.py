"""The schedule: which tokens of which sequences go through the model in the next step.

Continuous batching (Yu et al. 2022, "Orca", section 3.1): sequences join and leave between steps. Every running sequence
that has its prompt behind it takes one token; what is left of a step's tokens goes to prompts, in pieces (Agrawal et al. 2023,
"Sarathi", arXiv 2308.16369), the oldest first. When no page is free the newest sequence gives its pages back and is computed
again later, so that the oldest always finishes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence as Tokens
from dataclasses import dataclass, field, replace

from burnish.serve.pages import ROOT, Full, Pages


@dataclass(eq=False)
class Sequence:
    """One sequence in progress. `computed` positions of `tokens` are in its pages; `most` is its length at the very end."""

    tokens: list[int]
    prompt: int
    most: int
    number: int = 0
    computed: int = 0
    reused: int = 0  # positions of the prompt that were found, not computed
    pages: list[int] = field(default_factory=list)
    marks: list[int] = field(default_factory=list)  # of its full pages

    @property
    def left(self) -> int:
        """Tokens that are not in its pages yet."""
        return len(self.tokens) - self.computed


@dataclass(frozen=True)
class Piece:
    """`count` tokens of a sequence from `start` on, the last of them `guesses` of what comes after its known ones."""

    sequence: Sequence
    start: int
    count: int
    guesses: tuple[int, ...] = ()

    @property
    def ends(self) -> bool:
        """Whether the last known token is among them, or before them."""
        return self.start + self.count >= len(self.sequence.tokens)

    @property
    def scored(self) -> int:
        """How many of its last tokens are asked what comes next: the last known one and each guess."""
        return min(self.count, 1 + len(self.guesses)) if self.ends else 0

    @property
    def tokens(self) -> list[int]:
        """Known tokens and guesses, as they go through the model."""
        return [*self.sequence.tokens[self.start : self.start + self.count - len(self.guesses)], *self.guesses]


class Schedule:
    """Sequences that wait and run, at most `rows` at once and `tokens` a step, in the pages of one pool."""

    def __init__(self, pages: Pages, rows: int, tokens: int) -> None:
        self.pages, self.rows, self.tokens = pages, rows, max(tokens, rows)
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.preempted = 0  # how often a sequence had to give its pages back

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence. One that can never fit must not come here (`fits`)."""
        self.waiting.append(sequence)

    def fits(self, most: int) -> bool:
        """Whether a sequence of that length could run alone."""
        return self.pages.needed(most) <= self.pages.count

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out, wherever it is; its pages are free from now on."""
        if sequence in self.running:
            self.running.remove(sequence)
            self._give_back(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)

    def next(self) -> list[Piece]:
        """The pieces of the next step, with pages for all their positions; empty when nothing is to be done."""
        pieces: list[Piece] = []
        budget, before = self.tokens, self.preempted
        for sequence in list(self.running):
            if sequence in self.running and sequence.left == 1:
                budget -= self._plan(sequence, 1, pieces)
        for sequence in list(self.running):
            if sequence in self.running and sequence.left > 1 and budget > 0:
                budget -= self._plan(sequence, budget, pieces)
        while self.waiting and len(self.running) < self.rows and budget > 0 and self.preempted == before:
            if not self._admit(self.waiting[0]):
                break
            budget -= self._plan(self.running[-1], budget, pieces)
        return pieces

    def widen(self, piece: Piece, guesses: Tokens[int]) -> Piece:
        """A piece that ends, with guesses behind it: as many as free pages have room for. Nobody gives way for a guess."""
        end = piece.start + piece.count
        self.reserve(piece.sequence, end + len(guesses))
        kept = tuple(guesses[: len(piece.sequence.pages) * self.pages.size - end])
        return replace(piece, count=piece.count + len(kept), guesses=kept)

    def reserve(self, sequence: Sequence, positions: int) -> bool:
        """Take pages for so many positions of a sequence, as long as some are free; whether all were."""
        while len(sequence.pages) < self.pages.needed(positions):
            if not self.pages.free:
                return False
            self._take(sequence)
        return True

    def done(self, piece: Piece, accepted: int = 0) -> None:
        """A piece went through the model: its positions are in the pages, and full pages are known to others. Of its
        guesses only the first `accepted` stay."""
        sequence, size = piece.sequence, self.pages.size
        sequence.computed = piece.start + piece.count
        if piece.guesses:
            self.roll_back(sequence, sequence.computed - len(piece.guesses) + accepted)
        if sequence.computed // size > len(sequence.marks):
            known = [*sequence.tokens, *piece.guesses[:accepted]] if accepted else sequence.tokens
            for number in range(len(sequence.marks), sequence.computed // size):
                before = sequence.marks[-1] if sequence.marks else ROOT
                own = known[number * size : (number + 1) * size]
                sequence.marks.append(self.pages.fill(sequence.pages[number], before, own))

    def roll_back(self, sequence: Sequence, length: int) -> None:
        """Forget a sequence's positions from `length` on, and give back the pages that only they were in.

        A page that is known to others is never written again: when its end is forgotten it goes as a whole.
        """
        size = self.pages.size
        if length < sequence.computed:
            whole = length // size
            sequence.computed = whole * size if whole < len(sequence.marks) else length
            del sequence.marks[whole:]
        if len(sequence.pages) > (kept := self.pages.needed(sequence.computed)):
            self.pages.release(sequence.pages[kept:])
            del sequence.pages[kept:]

    def _admit(self, sequence: Sequence) -> bool:
        """Let the first of those that wait run, if its known tokens and one more have room beside what runs."""
        found = self.pages.match(sequence.tokens)
        if self.pages.needed(len(sequence.tokens) + 1) - len(found) > self.pages.free:
            self.pages.release(found)
            return False
        self.waiting.popleft()
        sequence.pages, sequence.marks = found, [self.pages.mark(page) for page in found]
        sequence.computed = len(found) * self.pages.size
        sequence.reused = max(sequence.reused, min(sequence.computed, sequence.prompt))
        self.running.append(sequence)
        return True

    def _plan(self, sequence: Sequence, budget: int, pieces: list[Piece]) -> int:
        """Add the sequence's next piece, of at most `budget` tokens; returns how many it is."""
        count = min(sequence.left, budget)
        while len(sequence.pages) < self.pages.needed(sequence.computed + count):
            try:
                self._take(sequence)
            except Full:
                gone = self._preempt()
                pieces[:] = [piece for piece in pieces if piece.sequence is not gone]
                if gone is sequence:
                    return 0
        pieces.append(Piece(sequence, sequence.computed, count))
        return count

    def _take(self, sequence: Sequence) -> None:
        held = sequence.pages
        ahead = self.pages.needed(max(sequence.most, len(sequence.tokens))) - len(held)
        held.append(self.pages.take(held[-1] if held else None, max(ahead, 1)))

    def _preempt(self) -> Sequence:
        """The newest running sequence gives its pages back and waits, first in line, to be computed again."""
        sequence = max(self.running, key=lambda one: one.number)
        self.running.remove(sequence)
        self._give_back(sequence)
        self.waiting.appendleft(sequence)
        self.preempted += 1
        return sequence

    def _give_back(self, sequence: Sequence) -> None:
        self.pages.release(sequence.pages)
        sequence.pages, sequence.marks, sequence.computed = [], [], 0
