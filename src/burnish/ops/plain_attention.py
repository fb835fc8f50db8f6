"""Plain attention: every score is made, kept and read again, as the formula is written; what others are compared with.

Shape letters: B rows, S positions, L keys, N query heads, K key/value heads, G = N / K, D size of a head.
"""

from __future__ import annotations

import torch
from torch import Tensor

from burnish.models.attention import Pattern, band, needed_mask


def plain_attention(q_BSND: Tensor, k_BLKD: Tensor, v_BLKD: Tensor, pattern: Pattern) -> Tensor:
    """As `models.attention.attend`, [B, S, N, D]: softmax(q k^T / sqrt(D)) v, the softmax in float32 at least.

    Saved: q, k, v and N L probabilities a query; beside 16-bit products those twice, in float32 and rounded. A query that
    sees no key gives 0.
    """
    whole = pattern.mask if pattern.mask is not None else needed_mask(q_BSND, k_BLKD, pattern)
    if whole is None and pattern.causal:
        whole = band(q_BSND.shape[1], k_BLKD.shape[1], 0, q_BSND.dtype, q_BSND.device)
    if len(pattern.runs) <= 1:
        return _attended(q_BSND, k_BLKD, v_BLKD, whole)
    pieces: list[Tensor] = []
    for row, row_end, start, end in pattern.runs:
        q, k, v = (x[row:row_end, start:end] for x in (q_BSND, k_BLKD, v_BLKD))
        mask = whole if whole is None else whole[..., : end - start, : end - start]
        pieces.append(_attended(q, k, v, mask).flatten(0, 1))
    return torch.cat(pieces).view(q_BSND.shape)


def _attended(q_BSND: Tensor, k_BLKD: Tensor, v_BLKD: Tensor, mask: Tensor | None) -> Tensor:
    rows, queries, heads, size = q_BSND.shape
    keys, kv_heads = k_BLKD.shape[1:3]
    # Heads that share keys stand below one another, so that keys are not repeated.
    below = heads // kv_heads * queries
    q = q_BSND.view(rows, queries, kv_heads, -1, size).permute(0, 2, 3, 1, 4).reshape(rows * kv_heads, below, size)
    k, v = (x.transpose(1, 2).reshape(rows * kv_heads, keys, size) for x in (k_BLKD, v_BLKD))
    scores = (torch.bmm(q, k.transpose(1, 2)) * size**-0.5).view(rows, heads, queries, keys)
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else scores + mask
    wide = torch.promote_types(scores.dtype, torch.float32)
    chances = torch._safe_softmax(scores.to(wide), -1).to(q.dtype)
    out = torch.bmm(chances.view(rows * kv_heads, below, keys), v)
    return out.view(rows, heads, queries, size).transpose(1, 2)
