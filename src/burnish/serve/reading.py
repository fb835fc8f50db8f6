"""Attention of all tokens of a step over a pool. Who reads what, and on which thread, is worked out once for all layers.

Tokens of several sequences are packed one after another: no row is padded to another's length. Shape letters: T packed
tokens, S queries of a piece, N query heads, K key/value heads, G query heads of one of them, D size of one head, L positions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from burnish.serve.attention import Held, Run, opened, part_of, several, single
from burnish.serve.paged import Pool

SHARED = 2**11  # pairs of a query and a key from which on threads share the work of a layer
QUERIES = 128  # of one part, where there are many
PRODUCTS = (torch.float32, torch.float64)  # types whose sums are kept in themselves


class Reader(NamedTuple):
    """One sequence's packed tokens, rows `row` to `end`, and where in the pool its positions up to the last of them lie."""

    row: int
    end: int
    runs: tuple[Run, ...]

    @property
    def length(self) -> int:
        """Positions."""
        return sum(run.length for run in self.runs)


class Layer(NamedTuple):
    """What a piece of work reads of one layer and writes to, [T, K, G, D]; `scaled` and `outs` are those of each token."""

    number: int
    held: Held
    queries: Tensor
    out: Tensor
    scaled: tuple[Tensor, ...]
    outs: tuple[Tensor, ...]


Work = Callable[[Layer], None]


class Reading:
    """The readers of one step."""

    def __init__(self, pool: Pool, readers: Sequence[Reader]) -> None:
        self.pool, self.readers = pool, readers
        self._products = pool.keys.device.type == "cpu" and pool.dtype in PRODUCTS
        self._work: dict[int, tuple[list[Work], int]] = {}

    def attend(self, layer: int, q_TND: Tensor, window: int = 0) -> Tensor:
        """Causal attention of each sequence's tokens over its own positions, which were written before. Returns [T, N, D].

        A query sees itself and, with a `window`, the `window` - 1 positions before it.
        """
        pool = self.pool
        out_TND = torch.empty_like(q_TND, memory_format=torch.contiguous_format)
        _, kv_heads, _, size = pool.keys.shape
        q_TKGD, out_TKGD = (x.unflatten(1, (kv_heads, -1)) for x in (q_TND, out_TND))
        if pool.scales is not None:
            q_TKGD = q_TKGD * pool.scales.keys[layer].unsqueeze(1).to(q_TND.dtype)
        if window not in self._work:
            self._work[window] = self._ordered(window)
        pieces, cost = self._work[window]
        held = Held(pool.keys[layer], pool.values[layer])
        given = Layer(layer, held, q_TKGD, out_TKGD, (q_TKGD * size**-0.5).unbind(), out_TKGD.unbind())
        pool.lanes.run(pieces, given, alone=cost < SHARED)
        if pool.scales is not None:
            out_TKGD.mul_(pool.scales.values[layer].unsqueeze(1))
        return out_TND

    def _ordered(self, window: int) -> tuple[list[Work], int]:
        """What is to be done in a layer, the dearest first (Graham 1969), and what it costs in all."""
        pieces = [piece for reader in self.readers for piece in self._pieces(reader, window)]
        pieces.sort(key=lambda piece: -piece[0])
        return [work for _, work in pieces], sum(cost for cost, _ in pieces)

    def _pieces(self, reader: Reader, window: int) -> list[tuple[int, Work]]:
        """The work of one sequence, with what each piece costs beside others."""
        row, end, runs = reader
        length, count = reader.length, end - row
        if self.pool.exact:
            return [(length * count, _each(slice(row, end), runs, window))]
        if count == 1 and self._products:
            return [(length, self._one(row, part_of(runs, length - window, length) if 0 < window < length else runs))]
        made = []
        for first, last in self._cut(count, length * count):
            seen = part_of(runs, 0, length - count + last)
            made.append(((last - first) * length, _some(slice(row + first, row + last), seen, window)))
        return made

    def _one(self, row: int, runs: tuple[Run, ...]) -> Work:
        """One query. Where its positions lie together, in all layers alike, they are named once."""
        pool = self.pool
        if pool.scales is not None:
            runs = opened(runs)
        if len(runs) > 1:
            return lambda at: single(at.scaled[row], at.held, runs, at.outs[row])
        (slot, length), dtype = runs[0], pool.dtype
        keys = pool.keys.transpose(2, 3).narrow(3, slot, length).unbind()
        values = pool.values.narrow(2, slot, length).unbind()

        def work(at: Layer) -> None:
            weights = torch.bmm(at.scaled[row], keys[at.number].to(dtype)).softmax(-1)
            torch.bmm(weights, values[at.number].to(dtype), out=at.outs[row])

        return work

    def _cut(self, count: int, cost: int) -> list[tuple[int, int]]:
        """All queries of a sequence at once, or in parts that lanes may share."""
        lanes = self.pool.lanes.count if cost >= SHARED else 1
        parts = min(count, lanes * max(1, count // (lanes * QUERIES))) if lanes > 1 else 1
        return list(pairwise(count * k // parts for k in range(parts + 1)))


def _some(rows: slice, runs: Sequence[Run], window: int) -> Work:
    """The last positions of `runs` as queries."""

    def work(at: Layer) -> None:
        out_SKGD = at.out[rows]
        out_SKGD.copy_(several(at.queries[rows].flatten(1, 2), at.held, runs, window).view_as(out_SKGD))

    return work


def _each(rows: slice, runs: Sequence[Run], window: int) -> Work:
    """The same, every query by itself, over positions that lie in order in a copy."""

    def work(at: Layer) -> None:
        q_SKGD, out_SKGD = at.queries[rows], at.out[rows]
        slots_L = torch.cat([torch.arange(run.slot, run.slot + run.length) for run in runs]).to(q_SKGD.device)
        copied = Held(*(x.index_select(1, slots_L) for x in at.held))
        for number, (q, out) in enumerate(zip(q_SKGD, out_SKGD, strict=True), len(slots_L) - len(q_SKGD) + 1):
            first = max(number - window, 0) if window else 0
            made = several(q.unsqueeze(0).flatten(1, 2), copied, [Run(first, number - first)], 0)
            out.copy_(made.view_as(out))

    return work
