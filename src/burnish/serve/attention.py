"""Attention of one sequence's packed tokens over positions that lie in a pool as a few pieces, without copying what lies together.

Shape letters: N query heads, K key/value heads, G query heads of one of them, D size of one head, S and L queries and keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from burnish.pool_size import OPENED


class Run(NamedTuple):
    """`length` positions that lie one after another in the pool, from `slot` on."""

    slot: int
    length: int


class Held(NamedTuple):
    """Keys and values of some heads of one layer, each [K, slots, D], in the type of the queries or as integers of 8 bits."""

    keys: Tensor
    values: Tensor

    def of(self, run: Run, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Those of a run, each [K, L, D]: as they lie where that is their type, else a copy."""
        k, v = (x.narrow(1, *run).to(dtype) for x in self)
        return k, v


def part_of(runs: Sequence[Run], start: int, end: int) -> tuple[Run, ...]:
    """The positions [start, end) of runs."""
    found, before = [], 0
    for run in runs:
        first, last = max(start - before, 0), min(end - before, run.length)
        if last > first:
            found.append(Run(run.slot + first, last - first))
        before += run.length
    return tuple(found)


def opened(runs: Sequence[Run]) -> tuple[Run, ...]:
    """The same positions, no more of them in one run than may be copied to another type at once."""
    return tuple(Run(slot + k, min(OPENED, length - k)) for slot, length in runs for k in range(0, length, OPENED))


def single(q_KGD: Tensor, held: Held, runs: Sequence[Run], out_KGD: Tensor) -> None:
    """One query, scaled before, that sees all of `runs`, as plain products: heads that share keys are rows of one product."""
    dtype = q_KGD.dtype
    scores = [torch.bmm(q_KGD, held.keys.narrow(1, *run).to(dtype).transpose(1, 2)) for run in runs]
    whole = torch.cat(scores, -1).softmax(-1)
    parts = zip(whole.split([run.length for run in runs], -1), runs, strict=True)
    made = [torch.bmm(weights, held.values.narrow(1, *run).to(dtype)) for weights, run in parts]
    torch.sum(torch.stack(made), 0, out=out_KGD)


def several(q_SND: Tensor, held: Held, runs: Sequence[Run], window: int) -> Tensor:
    """The last positions of `runs` as queries, each of which sees itself and what comes before it: [S, N, D].

    With a `window`, the `window` - 1 positions before it alone.
    """
    length, count = sum(run.length for run in runs), len(q_SND)
    if window and length > window:
        if count > 1:
            return _masked(q_SND, held, runs, window)
        runs = part_of(runs, length - window, length)
    elif count > 1:
        if q_SND.device.type != "cpu" and length > count:
            return _masked(q_SND, held, runs, length)
        past, own = part_of(runs, 0, length - count), part_of(runs, length - count, length)
        if len(own) > 1:
            return _masked(q_SND, held, runs, length)
        return joined(q_SND, held, (*past, *own), causal=True)
    return joined(q_SND, held, runs, causal=False)


def joined(q_SND: Tensor, held: Held, runs: Sequence[Run], causal: bool) -> Tensor:
    """Attention over several pieces, the last of them `causal`: each by itself, weighed by its sum of exponentials (Dao et al.
    2023, "Flash-Decoding")."""
    q = q_SND.transpose(0, 1).unsqueeze(0)
    if held.keys.dtype == torch.int8:
        runs = (*opened(runs[:-1]), runs[-1]) if causal else opened(runs)
    last = len(runs) - 1
    if not last:
        k, v = (x.unsqueeze(0) for x in held.of(runs[0], q.dtype))
        made = F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)
        return made[0].transpose(0, 1)
    if q.device.type != "cpu":
        return _masked(q_SND, held, runs, sum(run.length for run in runs))
    parts, sums = [], []
    for number, run in enumerate(runs):
        k, v = (x.unsqueeze(0) for x in held.of(run, q.dtype))
        part, log_sum = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            q, k, v, 0.0, causal and number == last
        )
        parts.append(part)
        sums.append(log_sum)
    weights = torch.stack(sums).softmax(0).to(q.dtype).unsqueeze(-1)
    return (torch.stack(parts) * weights).sum(0)[0].transpose(0, 1)


def _masked(q_SND: Tensor, held: Held, runs: Sequence[Run], window: int) -> Tensor:
    """Attention over a copy of all pieces, with a mask: where a window ends inside of what several queries see."""
    slots = torch.cat([torch.arange(run.slot, run.slot + run.length) for run in runs]).to(q_SND.device)
    k, v = (x.index_select(1, slots).unsqueeze(0) for x in held)
    length, count = len(slots), len(q_SND)
    column = torch.arange(length, device=q_SND.device)
    query = column[length - count :, None]
    seen = (column <= query) & (column > query - window)
    made = F.scaled_dot_product_attention(
        q_SND.transpose(0, 1).unsqueeze(0), k.to(q_SND.dtype), v.to(q_SND.dtype), attn_mask=seen, enable_gqa=True
    )
    return made[0].transpose(0, 1)
