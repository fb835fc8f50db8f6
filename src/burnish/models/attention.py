"""Attention, and which keys each query may see.

Shape letters: B rows, S positions, L keys (cached and new), N query heads, K key/value heads, D size of one head. "Saved:"
in a docstring counts the elements a token kept for the backward pass.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class Run(NamedTuple):
    """A rectangle of one batch: rows [row, row_end), positions [start, end), attended to alone."""

    row: int
    row_end: int
    start: int
    end: int


class Pattern(NamedTuple):
    """Which keys each query may see. Without a mask: all earlier ones (`causal`) or all there are, of its run if it has one.

    Where there are more keys than queries, the last query stands at the last key.
    """

    causal: bool = True
    mask: Tensor | None = None  # [B or 1, 1, S, L]: bool, True = visible, or a term added to the scores
    runs: tuple[Run, ...] = ()  # with a mask that holds for every run from its own start
    window: int = 0  # of a causal pattern: a query sees itself and the window - 1 keys before it; 0 = all of them


Kernel = Callable[[Tensor, Tensor, Tensor, Pattern], Tensor]  # what `attend` is one of


def packed_runs(segments: tuple[tuple[int, ...], ...], length: int) -> tuple[Run, ...]:
    """Cut packed rows into runs: neighbouring rows that are one piece share a run, other rows give one run a piece.

    Raises ValueError when the pieces of a row do not sum to `length`.
    """
    runs: list[Run] = []
    for row, pieces in enumerate(segments):
        if sum(pieces) != length or min(pieces, default=0) < 1:
            raise ValueError(f"segments: row {row} is {pieces}; positive lengths that sum to {length} are needed")
        if len(pieces) == 1 and runs and runs[-1].row_end == row and runs[-1].end - runs[-1].start == length:
            runs[-1] = runs[-1]._replace(row_end=row + 1)
            continue
        start = 0
        for piece in pieces:
            runs.append(Run(row, row + 1, start, start + piece))
            start += piece
    return tuple(runs)


def attend(q_BSND: Tensor, k_BLKD: Tensor, v_BLKD: Tensor, pattern: Pattern) -> Tensor:
    """Softmax attention with grouped key/value heads: query head n reads key head n // (N / K). Returns [B, S, N, D].

    Saved: q, k, v, output: (2 N + 2 K) D elements, and N logs of softmax sums (float32; float64 for float64 input).
    Several runs are joined, which keeps their outputs once more: N D elements. Nothing is S x S unless a mask is given,
    and one added to the scores is kept once, however many layers share it.
    """
    q, k, v = q_BSND.transpose(1, 2), k_BLKD.transpose(1, 2), v_BLKD.transpose(1, 2)
    mask = needed_mask(q_BSND, k_BLKD, pattern)
    causal = pattern.causal and mask is None
    if len(pattern.runs) <= 1:
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal, enable_gqa=True)
        return out.transpose(1, 2)
    pieces: list[Tensor] = []
    whole = mask
    for row, row_end, start, end in pattern.runs:
        q_part, k_part, v_part = (x[row:row_end, :, start:end] for x in (q, k, v))
        mask = whole if whole is None else whole[..., : end - start, : end - start]
        out = F.scaled_dot_product_attention(q_part, k_part, v_part, attn_mask=mask, is_causal=causal, enable_gqa=True)
        pieces.append(out.transpose(1, 2).flatten(0, 1))
    return torch.cat(pieces).view(q_BSND.shape)


def needed_mask(q_BSND: Tensor, k_BLKD: Tensor, pattern: Pattern) -> Tensor | None:
    """The pattern's mask, or one for what torch's own causal limit, counted from the first key, does not say."""
    queries, keys = q_BSND.shape[1], k_BLKD.shape[1]
    if pattern.mask is not None or not pattern.causal or (queries == keys and not 0 < pattern.window < keys):
        return pattern.mask
    return band(queries, keys, pattern.window, q_BSND.dtype, q_BSND.device)


def band(queries: int, keys: int, window: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """What a causal limit and a window (0: none) add to the scores: [1, 1, queries, keys] of 0 and minus infinity."""
    own = torch.arange(keys - queries, keys, device=device)[:, None]
    at = torch.arange(keys, device=device)
    seen = (at <= own) & (own - at < (window or keys))
    zeros = torch.zeros(queries, keys, dtype=dtype, device=device)
    return zeros.masked_fill_(~seen, float("-inf"))[None, None]


def reference_attention(q_BSND: Tensor, k_BSKD: Tensor, v_BSKD: Tensor) -> Tensor:
    """Causal attention spelled out in float32 (softmax(q k^T / sqrt(D)) v), to judge the fast path by."""
    q, k, v = (x.float().transpose(1, 2) for x in (q_BSND, k_BSKD, v_BSKD))
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
    return (scores.masked_fill(future, float("-inf")).softmax(-1) @ v).transpose(1, 2)


def check_attention(device: torch.device | str, dtype: torch.dtype, kernel: Kernel | None = None) -> float:
    """Compare the attention this device really runs (None: `attend`) with `reference_attention`; a few milliseconds.

    Returns the largest difference, outputs and gradients alike. Raises RuntimeError when it exceeds what rounding
    explains: a backend that answers zeros or ignores the causal limit must stop a run at its start.
    """
    draw = torch.Generator().manual_seed(0)
    shapes = ((2, 33, 4, 32), (2, 33, 2, 32), (2, 33, 2, 32))
    with torch.enable_grad():
        q, k, v = inputs = [torch.randn(s, generator=draw).to(device, dtype).requires_grad_() for s in shapes]
        weight = torch.randn(shapes[0], generator=draw).to(device)
        found = (kernel or attend)(q, k, v, Pattern())
        wanted = reference_attention(q, k, v)
        found_grads = torch.autograd.grad((found * weight).sum(), inputs)
        wanted_grads = torch.autograd.grad((wanted * weight).sum(), inputs)
    pairs = zip((found, *found_grads), (wanted, *wanted_grads), strict=True)
    worst = torch.stack([(a.float() - b.float()).abs().max() for a, b in pairs]).max().item()
    allowed = 16 * torch.finfo(dtype).eps if dtype.itemsize < 4 else 1e-3  # wide enough for TF32 inside a kernel
    if not worst <= allowed:  # a NaN must fail too
        where = f"attention on {device} in {dtype}"
        raise RuntimeError(f"{where} is wrong: off by {worst:.3g} from a plain softmax, rounding allows {allowed:.3g}")
    return worst
