"""Which guesses stand, and what is written where one does not: exactly the target's own distribution, whatever was guessed.

Chen et al. 2023, "Accelerating large language model decoding with speculative sampling", arXiv 2302.01318, section 2;
Leviathan et al. 2023, arXiv 2211.17192, appendix A.1. Probabilities are float64 vectors [V] that sum to 1. `q` must be what
the guess was really drawn by: another one leaves the target's distribution.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor


def stands(uniform: float, target: float, drawn: float) -> bool:
    """Whether a guess that was drawn with probability `drawn` stands, for a number drawn evenly from [0, 1).

    Strictly less: what the target never writes does not stand even for 0.
    """
    return uniform * drawn < target


def residual(target_V: Tensor, drawn_V: Tensor) -> Tensor:
    """What is drawn by after a guess that does not stand: max(0, p - q), as probabilities.

    Nothing is left where p = q, up to rounding; then no guess falls but by rounding, and p itself is drawn by.
    """
    left_V = (target_V - drawn_V).clamp(min=0)
    total = left_V.sum()
    return left_V / total if bool(torch.isfinite(total)) and float(total) > 0 else target_V


def drawn_by(probability_V: Tensor, uniform: float) -> int:
    """The token at a number drawn evenly from [0, 1); never one of probability 0."""
    cumulative_V = probability_V.cumsum(0)
    point = uniform * cumulative_V[-1]
    at = int(torch.searchsorted(cumulative_V, point, right=True))
    return min(at, int(probability_V.nonzero()[-1]))


def judged(
    guesses: Sequence[int], drawn: Sequence[Tensor], target: Callable[[int], Tensor], draw: np.random.Generator
) -> list[int]:
    """The guesses that stand and one token more: that in place of the first that falls, or after all of them.

    `target(i)` gives the target's probabilities of the i-th token, with those before it in place.
    """
    for number, (guess, drawn_V) in enumerate(zip(guesses, drawn, strict=True)):
        target_V = target(number)
        if not stands(draw.random(), float(target_V[guess]), float(drawn_V[guess])):
            return [*guesses[:number], drawn_by(residual(target_V, drawn_V), draw.random())]
    return [*guesses, drawn_by(target(len(guesses)), draw.random())]


def matched(guesses: Sequence[int], target: Callable[[int], int]) -> list[int]:
    """The same where nothing was drawn to guess: the target's own tokens, up to the first that was not guessed.

    A guess stands with the target's probability of it, and what is written in its place is never it: the rule above for a
    `q` of one token. The draws are those of a target alone, so its tokens are too.
    """
    tokens: list[int] = []
    for number in range(len(guesses) + 1):
        tokens.append(target(number))
        if number == len(guesses) or tokens[-1] != guesses[number]:
            break
    return tokens
