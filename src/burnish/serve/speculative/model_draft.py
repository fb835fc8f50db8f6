"""Guesses of a model: a smaller one with the same tokens, or the target with layers left out. It has a pool of its own.

Its cache holds what was known and what it guessed itself. What then stood is known by comparing, so it never drifts from
the sequence; where everything stood, the last guess was not read yet and comes first in the next round.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from burnish.serve import schedule
from burnish.serve.forward import Forward
from burnish.serve.pages import Pages
from burnish.serve.runners.runner import Runner
from burnish.serve.sampling import penalised, probabilities
from burnish.serve.speculative.acceptance import drawn_by
from burnish.serve.speculative.draft import Asked, Guess

OWN = 1  # a stream of random numbers beside that of the target, from the same seed


@dataclass(eq=False)
class _Own:
    """A sequence in the draft's own pages: how many tokens were known last time, and the guesses read behind them."""

    sequence: schedule.Sequence
    draw: np.random.Generator
    known: int = 0
    read: list[int] = field(default_factory=list)


class ModelDraft:
    """`shared` tokens are the target's too: of the others it guesses none. `vocab` is the length of the target's scores."""

    free = False

    def __init__(self, name: str, runner: Runner, pages: Pages, shared: int, vocab: int, tokens: int = 256) -> None:
        self.name, self.runner, self.pages, self.tokens = name, runner, pages, tokens
        self.schedule = schedule.Schedule(pages, 1, 1)
        self.forward = Forward(runner, pages)
        self.shared, self.vocab = shared, vocab
        self._own: dict[schedule.Sequence, _Own] = {}

    def behind(self, asked: Asked) -> int:
        own = self._own.get(asked.sequence)
        return max(0, len(asked.sequence.tokens) - (own.known if own else 0) - 2)

    def forget(self, sequence: schedule.Sequence) -> None:
        if (own := self._own.pop(sequence, None)) is not None:
            self.pages.release(own.sequence.pages)

    @torch.inference_mode()
    def guess(self, asked: Sequence[Asked], counts: Sequence[int]) -> list[Guess]:
        """One pass over what is new of every sequence, then one token of each and pass."""
        made: list[tuple[list[int], list[Tensor]]] = [([], []) for _ in asked]
        pieces: list[tuple[int, schedule.Piece]] = []
        for number, (one, count) in enumerate(zip(asked, counts, strict=True)):
            if count and (own := self._ready(one, count)) is not None:
                start, end = own.sequence.computed, len(own.sequence.tokens)
                pieces.append((number, schedule.Piece(own.sequence, start, end - start)))
        while pieces:
            scores_RV = self.forward([piece for _, piece in pieces])
            following = []
            for (number, piece), scores_V in zip(pieces, scores_RV, strict=True):
                one, (tokens, drawn) = asked[number], made[number]
                own = self._own[one.sequence]
                if piece.guesses:
                    own.read.append(piece.guesses[0])
                    own.sequence.computed += 1
                else:
                    self.schedule.done(piece)
                token = self._choose(one, own, scores_V[: self.shared], tokens, drawn)
                tokens.append(token)
                if len(tokens) < counts[number]:
                    following.append((number, schedule.Piece(own.sequence, own.sequence.computed, 1, (token,))))
            pieces = following
        return [Guess(tuple(tokens), tuple(drawn) or None) for tokens, drawn in made]

    def _ready(self, one: Asked, count: int) -> _Own | None:
        """The sequence in our pages, up to what still stands, with room for `count` guesses; None where there is none."""
        own = self._own.get(one.sequence)
        if own is None:
            inner = schedule.Sequence(one.sequence.tokens, one.sequence.prompt, one.sequence.most)
            inner.pages = self.pages.match(inner.tokens)
            inner.marks = [self.pages.mark(page) for page in inner.pages]
            inner.computed = len(inner.pages) * self.pages.size
            own = self._own[one.sequence] = _Own(inner, np.random.default_rng([one.options.seed, OWN]), inner.computed)
        tokens, shape = own.sequence.tokens, self.runner.config
        if len(tokens) + count > shape.max_positions or max(tokens[own.known :], default=0) >= shape.vocab:
            return None
        self.schedule.roll_back(own.sequence, min(own.known + _stood(own.read, tokens[own.known :]), len(tokens) - 1))
        own.known, own.read = own.sequence.computed, []
        if not self.schedule.reserve(own.sequence, len(tokens) + count - 1):
            self.schedule.roll_back(own.sequence, own.sequence.computed)
            return None
        while len(tokens) - own.sequence.computed > self.tokens:
            part = schedule.Piece(own.sequence, own.sequence.computed, self.tokens)
            self.forward([part])
            self.schedule.done(part)
        own.known = len(tokens)
        return own

    def _choose(self, one: Asked, own: _Own, scores_V: Tensor, tokens: list[int], drawn: list[Tensor]) -> int:
        """The next guess: the likeliest for a greedy request, else drawn as the request's own options say, and kept so."""
        if one.options.penalised:
            written = Counter(one.written) + Counter(tokens)
            scores_V = penalised(scores_V, one.options, {k: n for k, n in written.items() if k < self.shared})
        if one.options.temperature == 0:
            return int(scores_V.argmax())
        own_V = probabilities(scores_V, one.options)
        drawn_V = torch.zeros(self.vocab, dtype=own_V.dtype)
        drawn_V[: len(own_V)] = own_V
        drawn.append(drawn_V)
        return drawn_by(drawn_V, own.draw.random())


def _stood(read: Sequence[int], tokens: Sequence[int]) -> int:
    """How many guesses that were read are what came."""
    count = 0
    for guess, token in zip(read, tokens, strict=False):
        if guess != token:
            break
        count += 1
    return count
