"""Speculation: what drafting some tokens and verifying them in one step of the target gains, as formulas.

Costs are in steps of the target that write one token of each sequence: `draft` of one drafted token, `verify` of a step that
verifies, `overhead` of all else. Leviathan et al. 2023, "Fast inference from transformers via speculative decoding", arXiv
2211.17192, section 3.3, with a verification that is not free.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul

LONGEST = 16  # drafted tokens that are tried when the best number is looked for
SURE = 1 - 1e-9


def reached(hazards: Sequence[float]) -> list[float]:
    """Probability that the first, the first two, ... drafted tokens stand; `hazards`: that one does when those before do."""
    return list(accumulate(hazards, mul))


def expected_tokens(acceptance: float | Sequence[float], length: int) -> float:
    """Tokens of one round that drafts `length`: those that stand, and the target's own after them (equation 1)."""
    hazards = [acceptance] * length if isinstance(acceptance, (int, float)) else acceptance[:length]
    return 1 + sum(reached(hazards))


def speedup(
    acceptance: float | Sequence[float], length: int, draft: float, verify: float = 1.0, overhead: float = 0.0
) -> float:
    """Times as fast as without (theorem 3.8 where verify is 1 and overhead 0)."""
    return expected_tokens(acceptance, length) / (length * draft + verify + overhead)


def stands_of_drafted(acceptance: float, length: int) -> float:
    """Share of the drafted tokens that stand: the rate that most engines report."""
    return (expected_tokens(acceptance, length) - 1) / length if length else 0.0


def acceptance_of(tokens: float, length: int) -> float:
    """The acceptance at which a round of `length` drafted tokens gives so many. Raises ValueError outside 1..length + 1."""
    if not 1 <= tokens <= length + 1:
        raise ValueError(f"tokens {tokens}: a round of {length} drafted tokens gives 1 to {length + 1}")
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if expected_tokens(middle, length) < tokens else (low, middle)
    return (low + high) / 2


def break_even(length: int, draft: float, verify: float = 1.0, overhead: float = 0.0) -> float | None:
    """The acceptance at which a round costs what it gives; None where not even acceptance of everything does."""
    cost = length * draft + verify + overhead
    if cost > length + 1:
        return None
    return acceptance_of(max(cost, 1.0), length)


@dataclass(frozen=True)
class Best:
    """The number of tokens to draft, 0 for none, and what it gains."""

    length: int
    speedup: float


def best_length(
    acceptance: float | Sequence[float],
    draft: float,
    verify: Callable[[int], float] = lambda length: 1.0,
    overhead: float = 0.0,
    longest: int = LONGEST,
) -> Best:
    """The number of drafted tokens that is fastest; `verify(length)` costs a step that verifies so many."""
    found = [Best(0, 1.0)]
    found += [
        Best(length, speedup(acceptance, length, draft, verify(length), overhead)) for length in range(1, longest + 1)
    ]
    return max(found, key=lambda best: (best.speedup, -best.length))
