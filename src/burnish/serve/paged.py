"""Keys and values of all sequences in one pool of pages, and attention of all tokens of a step over it.

Tokens of several sequences are packed one after another: no row is padded to another's length. Shape letters: T packed
tokens, N query heads, K key/value heads, G query heads of one of them, D size of one head.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from burnish.models.cache import CacheShape
from burnish.serve.attention import Held, Run, opened, part_of, several, single
from burnish.serve.lanes import Lanes, Piece
from burnish.serve.rounding import Scales, rounded

SHARED = 2**11  # pairs of a query and a key from which on threads share the work of a layer
QUERIES = 128  # of one part, where there are many
PRODUCTS = (torch.float32, torch.float64)  # types whose sums are kept in themselves


class Reader(NamedTuple):
    """One sequence's packed tokens, rows `row` to `end`, and where in the pool its positions up to the last of them lie."""

    row: int
    end: int
    runs: tuple[Run, ...]


def runs_of(pages: Sequence[int], size: int, start: int, end: int) -> tuple[Run, ...]:
    """Positions [start, end) of a sequence in as few pieces as its pages allow."""
    found: list[Run] = []
    position = start
    while position < end:
        page, inside = pages[position // size], position % size
        count = min(size - inside, end - position)
        slot = page * size + inside
        if found and found[-1].slot + found[-1].length == slot:
            found[-1] = Run(found[-1].slot, found[-1].length + count)
        else:
            found.append(Run(slot, count))
        position += count
    return tuple(found)


class Pool:
    """Keys and values of every layer, each [K, slots, D], made once.

    Bytes: 2 * layers * slots * K * D * element size. `threads` of a CPU share the attention of a layer. With `scales` keys and
    values are held in 8 bits, and attended to in the type of the queries, `OPENED` positions at a time.
    `exact` does each query by itself, over a copy of what it sees, so that neither its company nor its place changes a digit.
    """

    def __init__(
        self,
        shape: CacheShape,
        slots: int,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
        threads: int = 1,
        exact: bool = False,
        scales: Scales | None = None,
    ) -> None:
        size = (shape.layers, shape.kv_heads, slots, shape.head_dim)
        held = dtype if scales is None else torch.int8
        self.keys, self.values = (torch.zeros(size, dtype=held, device=device) for _ in range(2))
        self.scales = scales
        on_cpu = self.keys.device.type == "cpu"
        self.exact = exact
        self._products = on_cpu and dtype in PRODUCTS
        self._lanes = Lanes(threads if on_cpu else 1, SHARED)

    @property
    def bytes(self) -> int:
        """Bytes of all keys and values."""
        return self.keys.nbytes + self.values.nbytes

    def write(self, layer: int, slots_T: Tensor, k_TKD: Tensor, v_TKD: Tensor) -> None:
        """Put the keys and values of packed tokens where they belong."""
        if self.scales is not None:
            k_TKD, v_TKD = rounded(k_TKD, self.scales.keys[layer]), rounded(v_TKD, self.scales.values[layer])
        self.keys[layer].index_copy_(1, slots_T, k_TKD.transpose(0, 1).to(self.keys.dtype))
        self.values[layer].index_copy_(1, slots_T, v_TKD.transpose(0, 1).to(self.values.dtype))

    def attend(self, layer: int, q_TND: Tensor, readers: Sequence[Reader], window: int = 0) -> Tensor:
        """Causal attention of each sequence's tokens over its own positions, which were written before. Returns [T, N, D].

        A query sees itself and, with a `window`, the `window` - 1 positions before it.
        """
        out_TND = torch.empty_like(q_TND, memory_format=torch.contiguous_format)
        _, kv_heads, _, size = self.keys.shape
        q_TKGD, out_TKGD = (x.unflatten(1, (kv_heads, -1)) for x in (q_TND, out_TND))
        if self.scales is not None:
            q_TKGD = q_TKGD * self.scales.keys[layer].unsqueeze(1).to(q_TND.dtype)
        whole = Held(self.keys[layer], self.values[layer])
        k_KDL, v_KLD = whole.keys.transpose(1, 2), whole.values
        queries, outs = (q_TKGD * size**-0.5).unbind(), out_TKGD.unbind()
        pieces: list[Piece] = []
        for row, end, runs in readers:
            length, count = sum(run.length for run in runs), end - row
            if self.exact:
                pieces.append(
                    Piece(length * count, partial(_each, q_TKGD[row:end], whole, runs, window, out_TKGD[row:end]))
                )
            elif count == 1 and self._products:
                seen = part_of(runs, length - window, length) if 0 < window < length else runs
                if self.scales is not None:
                    seen = opened(seen)
                pieces.append(Piece(length, partial(single, queries[row], k_KDL, v_KLD, seen, outs[row])))
            else:
                for first, last in self._cut(count, length * count):
                    before, rows = length - count + last, slice(row + first, row + last)
                    seen = part_of(runs, 0, before)
                    do = partial(_several, q_TKGD[rows], whole, seen, window, out_TKGD[rows])
                    pieces.append(Piece((last - first) * before, do))
        self._lanes.run(pieces)
        if self.scales is not None:
            out_TKGD.mul_(self.scales.values[layer].unsqueeze(1))
        return out_TND

    def _cut(self, count: int, cost: int) -> list[tuple[int, int]]:
        """All queries of a sequence at once, or in parts that threads may share."""
        lanes = self._lanes.count if cost >= SHARED else 1
        parts = min(count, lanes * max(1, count // (lanes * QUERIES))) if lanes > 1 else 1
        return list(pairwise(count * k // parts for k in range(parts + 1)))


def _several(q_SKGD: Tensor, held: Held, runs: Sequence[Run], window: int, out_SKGD: Tensor) -> None:
    out_SKGD.copy_(several(q_SKGD.flatten(1, 2), held, runs, window).view_as(out_SKGD))


def _each(q_SKGD: Tensor, held: Held, runs: Sequence[Run], window: int, out_SKGD: Tensor) -> None:
    """Every query by itself, over positions that lie in order in a copy."""
    slots = torch.cat([torch.arange(run.slot, run.slot + run.length) for run in runs]).to(q_SKGD.device)
    copied = Held(*(x.index_select(1, slots) for x in held))
    for number, (q, out) in enumerate(zip(q_SKGD, out_SKGD, strict=True), len(slots) - len(q_SKGD) + 1):
        first = max(number - window, 0) if window else 0
        _several(q.unsqueeze(0), copied, [Run(first, number - first)], 0, out.unsqueeze(0))
