"""The size of a pool of keys and values: bytes of a position, of what a step makes beside it, and how many pages fit.

Torch-free: the engine is built by it, and a plan says it. Everything counts the model's own shape; nothing is estimated but
what a step makes, which is an upper bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from burnish.errors import UserError
from burnish.units import show

LOGIT = 4  # bytes of a score
SCORES = 3  # how many times the scores of a step stand at once: made, checked, chosen from
OPENED = 1024  # positions held in 8 bits that a thread has at once in the type of the queries


class Sizes(Protocol):
    """What of a decoder the bytes depend on; a `ModelConfig` has it."""

    @property
    def vocab(self) -> int: ...
    @property
    def hidden(self) -> int: ...
    @property
    def ffn(self) -> int: ...
    @property
    def layers(self) -> int: ...
    @property
    def heads(self) -> int: ...
    @property
    def kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def max_positions(self) -> int: ...


@dataclass(frozen=True)
class Step:
    """The largest step: `tokens`, `rows` whose scores are asked for, each with `guesses` more.

    `element` bytes of a number that it makes, and `held` bytes of one in the pool: fewer where keys and values are rounded,
    which each of `threads` copies back by parts.
    """

    tokens: int
    rows: int
    element: int
    held: int
    guesses: int = 0
    threads: int = 1


@dataclass(frozen=True)
class PoolSize:
    """`pages` of `page` positions, and the bytes of all of them, a draft's too, and of what the largest step makes."""

    pages: int
    page: int
    pool_bytes: int
    step_bytes: int

    @property
    def positions(self) -> int:
        """Positions that fit."""
        return self.pages * self.page


def position_bytes(config: Sizes, element: int) -> int:
    """Bytes of one position: keys and values of every layer."""
    return 2 * config.layers * config.kv_heads * config.head_dim * element


def step_bytes(config: Sizes, tokens: int, rows: int, element: int) -> int:
    """Most bytes that a step of `tokens` makes and drops: a layer's vectors of each token, and the scores of `rows`."""
    query, key = config.heads * config.head_dim, config.kv_heads * config.head_dim
    vectors = 4 * config.hidden + 3 * query + 4 * key + 4 * config.ffn
    return tokens * vectors * element + SCORES * rows * config.vocab * LOGIT


def opened_bytes(config: Sizes, step: Step) -> int:
    """Most bytes of keys and values that stand in the type of the queries beside the pool."""
    if step.held == step.element:
        return 0
    return 2 * step.threads * max(OPENED, step.tokens) * config.kv_heads * config.head_dim * step.element


def pool_within(config: Sizes, memory: int, page: int, step: Step, draft: Sizes | None = None) -> PoolSize:
    """The pool that fits in `memory` bytes beside what a step makes. Raises UserError when not one page does.

    `draft`, where it is a model, has as many pages of its own.
    """
    tokens, rows = step.tokens, step.rows
    beside = step_bytes(config, tokens, rows * (1 + step.guesses), step.element) + opened_bytes(config, step)
    one = page * position_bytes(config, step.held)
    if draft is not None:
        beside += step_bytes(draft, tokens, rows, step.element) + opened_bytes(draft, step)
        one += page * position_bytes(draft, step.held)
    pages = (memory - beside) // one
    if pages < 1:
        need = show(beside + one, "bytes")
        raise UserError(
            f"--memory {show(memory, 'bytes')}: a step of {tokens} tokens and one page of {page} positions take {need}; "
            f"give at least that, or lower --step-tokens or --rows"
        )
    most = -(-config.max_positions // page) * rows  # more than all rows can fill is of no use
    pages = min(pages, most)
    return PoolSize(pages, page, pages * one, beside)
