"""The schedule: which tokens of which sequences go through the model in the next step.

Continuous batching (Yu et al. 2022, "Orca", section 3.1): sequences join and leave between steps. Every running sequence
that has its prompt behind it takes one token; what is left of a step's tokens goes to prompts, in pieces (Agrawal et al. 2023,
"Sarathi", arXiv 2308.16369), the oldest first. When no page is free the newest sequence gives its pages back and is computed
again later, so that the oldest always finishes.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

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
    """`count` tokens of a sequence from `start` on; with the last of them its next token is known."""

    sequence: Sequence
    start: int
    count: int

    @property
    def ends(self) -> bool:
        """Whether the last known token is among them."""
        return self.start + self.count == len(self.sequence.tokens)


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

    def done(self, piece: Piece) -> None:
        """A piece went through the model: its positions are in the pages, and full pages are known to others."""
        sequence, size = piece.sequence, self.pages.size
        sequence.computed = piece.start + piece.count
        for number in range(len(sequence.marks), sequence.computed // size):
            before = sequence.marks[-1] if sequence.marks else ROOT
            own = sequence.tokens[number * size : (number + 1) * size]
            sequence.marks.append(self.pages.fill(sequence.pages[number], before, own))

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
                sequence.pages.append(self.pages.take(sequence.pages[-1] if sequence.pages else None))
            except Full:
                gone = self._preempt()
                pieces[:] = [piece for piece in pieces if piece.sequence is not gone]
                if gone is sequence:
                    return 0
        pieces.append(Piece(sequence, sequence.computed, count))
        return count

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
