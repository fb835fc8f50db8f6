"""Guesses from the sequence itself: what came after the last time that its last few tokens stood there before.

Prompt lookup (Saxena 2023): for text that repeats its prompt or itself, such as edits, quotes and code.
"""

from __future__ import annotations

from collections.abc import Sequence

from burnish.serve import schedule
from burnish.serve.speculative.draft import Asked, Guess

LONGEST, SHORTEST = 4, 2  # tokens that must have stood there before; the longest that have decide


class _Index:
    """Where each run of tokens of a sequence ended last, but for its very end."""

    def __init__(self) -> None:
        self.ends: dict[tuple[int, ...], int] = {}
        self.read = 0

    def extend(self, tokens: list[int]) -> None:
        for end in range(max(self.read, SHORTEST), len(tokens)):
            for length in range(SHORTEST, min(LONGEST, end) + 1):
                self.ends[tuple(tokens[end - length : end])] = end
        self.read = max(self.read, len(tokens))

    def after(self, tokens: list[int]) -> int | None:
        """Where the text goes on that stood before as it ends now."""
        for length in range(min(LONGEST, len(tokens)), SHORTEST - 1, -1):
            if (end := self.ends.get(tuple(tokens[-length:]))) is not None:
                return end
        return None


class NgramDraft:
    """Looks the end of each sequence up in the sequence."""

    name, free = "ngram", True

    def __init__(self) -> None:
        self._indices: dict[schedule.Sequence, _Index] = {}

    def guess(self, asked: Sequence[Asked], counts: Sequence[int]) -> list[Guess]:
        return [self._one(one.sequence, count) for one, count in zip(asked, counts, strict=True)]

    def _one(self, sequence: schedule.Sequence, count: int) -> Guess:
        index, tokens = self._indices.setdefault(sequence, _Index()), sequence.tokens
        index.extend(tokens)
        start = index.after(tokens)
        if start is None:
            return Guess()
        # what repeats itself faster than it is guessed goes on repeating
        period = tokens[start:]
        return Guess(tuple(period[number % len(period)] for number in range(count)))

    def behind(self, asked: Asked) -> int:
        return 0

    def forget(self, sequence: schedule.Sequence) -> None:
        self._indices.pop(sequence, None)
