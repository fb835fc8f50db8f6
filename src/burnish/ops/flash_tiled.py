"""Flash attention tile by tile in plain torch: what the fast kernels compute, readable, on any device and in any float format.

Forward keeps a running maximum m and a running sum l of exponentials a query (online softmax: Milakov & Gimelshein 2018,
arXiv 1805.02867, algorithm 3); tiles of scores are never kept (Dao et al. 2022, arXiv 2205.14135, algorithms 1 and 4; Dao
2023, arXiv 2307.08691, section 3.1: divide once, at the end, and keep log-sum-exp alone). Sums are made in float32 at least.

Shape letters: T rows of queries, U rows of keys, N query heads, K key/value heads, G = N / K, D size of a head; within a
tile P = sequences x key/value heads, q = queries x G, k = keys.
"""

from __future__ import annotations

import torch
from torch import Tensor

from burnish.ops.flash_tiles import Group, Tiles

NEGATIVE, POSITIVE = float("-inf"), float("inf")


def forward(q_TND: Tensor, k_UKD: Tensor, v_UKD: Tensor, tiles: Tiles) -> tuple[Tensor, Tensor]:
    """softmax(q k^T / sqrt(D)) v of every sequence, [T, N, D], and log-sum-exp, [T, N] (float32 at least).

    A query that sees no key gives 0, with log-sum-exp minus infinity. Tile memory is constant in the length.
    """
    out_TND, sums_TN = torch.empty_like(q_TND, memory_format=torch.contiguous_format), empty_sums(q_TND)
    heads = k_UKD.shape[1]
    for group in tiles.groups():
        q, out, sums = (_queries(x, group, heads) for x in (q_TND, out_TND, sums_TN.unsqueeze(-1)))
        k, v = (_keys(x, group) for x in (k_UKD, v_UKD))
        for first in range(0, group.queries, tiles.block_q):
            end = min(first + tiles.block_q, group.queries)
            made, log_sums = _attended(_wide(q[..., first:end, :]), (k, v), group, tiles, (first, end))
            out[..., first:end, :] = made.view(out[..., first:end, :].shape)
            sums[..., first:end, :] = log_sums.view(sums[..., first:end, :].shape)
    return out_TND, sums_TN


def backward(
    grad_TND: Tensor, q_TND: Tensor, k_UKD: Tensor, v_UKD: Tensor, out_TND: Tensor, sums_TN: Tensor, tiles: Tiles
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v: scores are made again, a tile at a time (Dao 2023, algorithm 2).

    With P = exp(s - log-sum-exp) and dP = dO v^T:  dV = P^T dO,  dS = P (dP - rowsum(dO O)),  dQ = dS k,  dK = dS^T q.
    """
    wide, heads = sums_TN.dtype, k_UKD.shape[1]
    for_q = torch.zeros(q_TND.shape, dtype=wide, device=q_TND.device)
    for_k, for_v = (torch.zeros(k_UKD.shape, dtype=wide, device=q_TND.device) for _ in range(2))
    for group in tiles.groups():
        given = [_queries(x, group, heads) for x in (grad_TND, q_TND, out_TND, sums_TN.unsqueeze(-1), for_q)]
        k, v, dk, dv = (_keys(x, group) for x in (k_UKD, v_UKD, for_k, for_v))
        for first in range(0, group.queries, tiles.block_q):
            queries = first, min(first + tiles.block_q, group.queries)
            grad, q, out, sums = (_wide(x[..., queries[0] : queries[1], :]) for x in given[:4])
            part = _back(grad, q, (grad * out).sum(-1, keepdim=True), sums, (k, v, dk, dv), group, tiles, queries)
            target = given[4][..., queries[0] : queries[1], :]
            target.copy_(part.view(target.shape))
    return for_q.to(q_TND.dtype), for_k.to(k_UKD.dtype), for_v.to(v_UKD.dtype)


def empty_sums(q_TND: Tensor) -> Tensor:
    """Room for log-sum-exp [T, N]: float32, or float64 for such queries."""
    wide = torch.promote_types(q_TND.dtype, torch.float32)
    return torch.empty(q_TND.shape[:2], dtype=wide, device=q_TND.device)


def _queries(x_TNd: Tensor, group: Group, heads: int) -> Tensor:
    """A view of a group's rows, [sequences, K, G, queries, d]."""
    rows = x_TNd[group.query_row : group.query_row + group.sequences * group.queries]
    below, size = x_TNd.shape[1] // heads, x_TNd.shape[2]
    return rows.view(group.sequences, group.queries, heads, below, size).permute(0, 2, 3, 1, 4)


def _keys(x_UKD: Tensor, group: Group) -> Tensor:
    """A view of a group's rows, [sequences, K, keys, D]."""
    rows = x_UKD[group.key_row : group.key_row + group.sequences * group.keys]
    return rows.view(group.sequences, group.keys, *x_UKD.shape[1:]).transpose(1, 2)


def _wide(x: Tensor) -> Tensor:
    """A tile in the format of sums: queries as [P, q, d], keys as [P, k, d]."""
    tile = x.reshape(x.shape[0] * x.shape[1], x.shape[2:-1].numel(), x.shape[-1])
    return tile.to(torch.promote_types(x.dtype, torch.float32))


def _attended(
    q_PqD: Tensor, keys: tuple[Tensor, Tensor], group: Group, tiles: Tiles, queries: tuple[int, int]
) -> tuple[Tensor, Tensor]:
    """The output of a tile of queries, [P, q, D], and its log-sum-exp, [P, q, 1]."""
    q_PqD = q_PqD * q_PqD.shape[-1] ** -0.5
    highest = q_PqD.new_full((*q_PqD.shape[:2], 1), NEGATIVE)
    total, out = torch.zeros_like(highest), torch.zeros_like(q_PqD)
    start, stop = tiles.seen(group, *queries)
    for at in range(start, stop, tiles.block_k):
        end = min(at + tiles.block_k, stop)
        k_PkD, v_PkD = (_wide(x[:, :, at:end]) for x in keys)
        scores = _scores(q_PqD, k_PkD, group, tiles, queries, (at, end))
        new = torch.maximum(highest, scores.amax(-1, keepdim=True))
        base = new.masked_fill(new == NEGATIVE, 0.0)  # nothing seen so far: every exponential is 0
        exponentials = scores.sub_(base).exp_()
        shrink = _shrink(highest, base)
        total = total * shrink + exponentials.sum(-1, keepdim=True)
        out = out.mul_(shrink).baddbmm_(exponentials, v_PkD)
        highest = new
    seen = total > 0
    return out.div_(total.where(seen, 1.0)), (highest + total.log()).where(seen, NEGATIVE)


def _shrink(highest: Tensor, base: Tensor) -> Tensor:
    """By what sums made under an earlier maximum are rescaled under the new one."""
    return (highest - base).exp_()


def _back(
    grad_PqD: Tensor,
    q_PqD: Tensor,
    delta_Pq1: Tensor,
    sums_Pq1: Tensor,
    keys: tuple[Tensor, ...],
    group: Group,
    tiles: Tiles,
    queries: tuple[int, int],
) -> Tensor:
    """The gradient of a tile of queries; those of the keys and values that they see are added in place."""
    scale = q_PqD.shape[-1] ** -0.5
    q_PqD = q_PqD * scale
    sums_Pq1 = sums_Pq1.masked_fill(sums_Pq1 == NEGATIVE, POSITIVE)  # saw nothing: every probability is 0
    for_q = torch.zeros_like(q_PqD)
    start, stop = tiles.seen(group, *queries)
    for at in range(start, stop, tiles.block_k):
        end = min(at + tiles.block_k, stop)
        k_PkD, v_PkD = (_wide(x[:, :, at:end]) for x in keys[:2])
        p_Pqk = _scores(q_PqD, k_PkD, group, tiles, queries, (at, end)).sub_(sums_Pq1).exp_()
        _add(keys[3][:, :, at:end], torch.bmm(p_Pqk.transpose(1, 2), grad_PqD))
        ds_Pqk = torch.bmm(grad_PqD, v_PkD.transpose(1, 2)).sub_(delta_Pq1).mul_(p_Pqk)
        for_q.baddbmm_(ds_Pqk, k_PkD)
        _add(keys[2][:, :, at:end], torch.bmm(ds_Pqk.transpose(1, 2), q_PqD))
    return for_q.mul_(scale)


def _scores(
    q_PqD: Tensor, k_PkD: Tensor, group: Group, tiles: Tiles, queries: tuple[int, int], keys: tuple[int, int]
) -> Tensor:
    """Scores of a tile, minus infinity where a query does not see a key."""
    scores = torch.bmm(q_PqD, k_PkD.transpose(1, 2))
    if tiles.whole(group, queries, keys):
        return scores
    own = torch.arange(*queries, device=scores.device)[:, None] + group.keys - group.queries
    at = torch.arange(*keys, device=scores.device)
    hidden = torch.zeros(own.shape[0], at.shape[0], dtype=torch.bool, device=scores.device)
    if tiles.behind >= 0:
        hidden |= at > own + tiles.behind
    if tiles.before >= 0:
        hidden |= at < own - tiles.before
    scores.view(-1, *hidden.shape).masked_fill_(hidden, NEGATIVE)
    return scores


def _add(target: Tensor, tile: Tensor) -> None:
    target.add_(tile.view(target.shape))
