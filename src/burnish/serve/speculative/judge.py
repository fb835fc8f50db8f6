"""A sequence's guesses against the target's scores: greedy and sampled, with penalties that follow what is written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from torch import Tensor

from burnish.serve.sampling import choose, penalised, probabilities
from burnish.serve.speculative.acceptance import judged, matched
from burnish.serve.speculative.draft import Asked, Guess


def judge(asked: Asked, guess: Guess, scores_KV: Tensor, best: Sequence[int] = ()) -> list[int]:
    """The guesses that stand and one token more, up to a token that ends the sequence.

    scores_KV: of the last known token and of each guess. `best`: the likeliest token of each, where it alone decides.
    """
    options, draw = asked.options, asked.draw

    def scores_at(number: int) -> Tensor:
        if not options.penalised:
            return scores_KV[number]
        return penalised(scores_KV[number], options, Counter(asked.written) + Counter(guess.tokens[:number]))

    def chosen(number: int) -> int:
        return best[number] if best else choose(scores_at(number)[None], options, [draw])[0]

    if guess.drawn is None or options.temperature == 0:
        return matched(guess.tokens, chosen)
    return judged(guess.tokens, guess.drawn, lambda number: probabilities(scores_at(number), options), draw)
