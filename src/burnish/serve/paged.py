"""Keys and values of all sequences in one pool of pages, and attention over them without copying what lies together.

Tokens of several sequences are packed one after another: no row is padded to another's length. Shape letters: T packed
tokens, N query heads, K key/value heads, D size of one head, S and L queries and keys of one sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from burnish.models.cache import CacheShape


class Run(NamedTuple):
    """`length` positions that lie one after another in the pool, from `slot` on."""

    slot: int
    length: int


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


def part_of(runs: Sequence[Run], start: int, end: int) -> tuple[Run, ...]:
    """The positions [start, end) of runs."""
    found, before = [], 0
    for run in runs:
        first, last = max(start - before, 0), min(end - before, run.length)
        if last > first:
            found.append(Run(run.slot + first, last - first))
        before += run.length
    return tuple(found)


class Pool:
    """Keys and values of every layer, each [slots, K, D], made once.

    Bytes: 2 * layers * slots * K * D * element size.
    """

    def __init__(self, shape: CacheShape, slots: int, dtype: torch.dtype, device: torch.device | str = "cpu") -> None:
        size = (shape.layers, slots, shape.kv_heads, shape.head_dim)
        self.keys, self.values = (torch.zeros(size, dtype=dtype, device=device) for _ in range(2))

    @property
    def bytes(self) -> int:
        """Bytes of all keys and values."""
        return self.keys.nbytes + self.values.nbytes

    def write(self, layer: int, slots_T: Tensor, k_TKD: Tensor, v_TKD: Tensor) -> None:
        """Put the keys and values of packed tokens where they belong."""
        self.keys[layer].index_copy_(0, slots_T, k_TKD.to(self.keys.dtype))
        self.values[layer].index_copy_(0, slots_T, v_TKD.to(self.values.dtype))

    def attend(self, layer: int, q_TND: Tensor, readers: Sequence[Reader], window: int = 0) -> Tensor:
        """Causal attention of each sequence's tokens over its own positions, which were written before. Returns [T, N, D].

        A query sees itself and, with a `window`, the `window` - 1 positions before it.
        """
        out = torch.empty_like(q_TND)
        for reader in readers:
            out[reader.row : reader.end] = self._read(layer, q_TND[reader.row : reader.end], reader.runs, window)
        return out

    def _read(self, layer: int, q_SND: Tensor, runs: Sequence[Run], window: int) -> Tensor:
        length, count = sum(run.length for run in runs), len(q_SND)
        if window and length > window:
            if count > 1:
                return self._masked(layer, q_SND, runs, window)
            runs = part_of(runs, length - window, length)
        elif count > 1:
            if q_SND.device.type != "cpu" and length > count:
                return self._masked(layer, q_SND, runs, length)
            past, own = part_of(runs, 0, length - count), part_of(runs, length - count, length)
            if len(own) > 1:
                return self._masked(layer, q_SND, runs, length)
            return self._joined(layer, q_SND, (*past, *own), causal=True)
        return self._joined(layer, q_SND, runs, causal=False)

    def _joined(self, layer: int, q_SND: Tensor, runs: Sequence[Run], causal: bool) -> Tensor:
        """Attention over several pieces, the last of them `causal`: each by itself, weighed by its sum of exponentials (Dao
        et al. 2023, "Flash-Decoding")."""
        q = q_SND.transpose(0, 1).unsqueeze(0)
        last = len(runs) - 1
        if not last:
            k, v = self._piece(layer, runs[0])
            made = F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)
            return made[0].transpose(0, 1)
        if q.device.type != "cpu":
            return self._masked(layer, q_SND, runs, sum(run.length for run in runs))
        parts, sums = [], []
        for number, run in enumerate(runs):
            k, v = self._piece(layer, run)
            part, log_sum = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
                q, k, v, 0.0, causal and number == last
            )
            parts.append(part)
            sums.append(log_sum)
        weights = torch.stack(sums).softmax(0).to(q.dtype).unsqueeze(-1)
        return (torch.stack(parts) * weights).sum(0)[0].transpose(0, 1)

    def _masked(self, layer: int, q_SND: Tensor, runs: Sequence[Run], window: int) -> Tensor:
        """Attention over a copy of all pieces, with a mask: where a window ends inside of what several queries see."""
        slots = torch.cat([torch.arange(run.slot, run.slot + run.length) for run in runs]).to(q_SND.device)
        k, v = (x[layer].index_select(0, slots).transpose(0, 1).unsqueeze(0) for x in (self.keys, self.values))
        length, count = len(slots), len(q_SND)
        column = torch.arange(length, device=q_SND.device)
        query = column[length - count :, None]
        seen = (column <= query) & (column > query - window)
        made = F.scaled_dot_product_attention(
            q_SND.transpose(0, 1).unsqueeze(0), k.to(q_SND.dtype), v.to(q_SND.dtype), attn_mask=seen, enable_gqa=True
        )
        return made[0].transpose(0, 1)

    def _piece(self, layer: int, run: Run) -> tuple[Tensor, Tensor]:
        """Keys and values of a run, each [1, K, L, D], as they lie."""
        there = slice(run.slot, run.slot + run.length)
        k, v = (x[layer, there].transpose(0, 1).unsqueeze(0) for x in (self.keys, self.values))
        return k, v
