"""The view of a batch: which position each token has, and which keys it may see, for whole, packed, padded, cached rows.

Shape letters: B rows, S positions, L keys (cached and new).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from burnish.models.attention import Pattern, band, packed_runs
from burnish.models.cache import KVCache


class View(NamedTuple):
    """Default positions [B or 1, S], and the pattern of layers that see all earlier positions and of those with a window."""

    positions: Tensor
    whole: Pattern
    near: Pattern


def view(
    ids_BS: Tensor,
    segments: Sequence[Sequence[int]] | None,
    mask_BS: Tensor | None,
    cache: KVCache | None,
    window: int,
    dtype: torch.dtype | None,
) -> View:
    """How a decoder sees a batch; a mask is made only where one is needed. `window` 0: no layer has one.

    A query sees itself and the `window` - 1 positions before it (Beltagy et al. 2020, section 3.1). `dtype` is that of the
    queries, None where the layers know windows without a mask (`mask_dtype`). Raises ValueError for pieces that do not sum
    to S, pieces together with a mask or cache, a full cache, a cache while gradients are on.
    """
    if segments is not None:
        if mask_BS is not None or cache is not None:
            raise ValueError("segments: packed rows take neither a mask nor a cache; pass one of the three")
        return _packed(ids_BS, segments, window, dtype)
    if cache is not None:
        if torch.is_grad_enabled():
            raise ValueError("cache: keys and values kept in it carry no gradients; call under torch.no_grad()")
        return _cached(ids_BS.shape[1], mask_BS, cache, window)
    return _fresh(ids_BS, mask_BS, window, dtype)


def mask_dtype(layers: Iterable[Any], dtype: torch.dtype) -> torch.dtype | None:
    """`dtype` where one of the layers takes its window as a mask."""
    return dtype if any(layer.attention.kernel is None for layer in layers) else None


def _windowed(length: int, window: int, dtype: torch.dtype | None, device: torch.device) -> Pattern:
    """Whole rows under a window that hides some of their keys."""
    return Pattern(mask=None if dtype is None else band(length, length, window, dtype, device), window=window)


def _packed(ids_BS: Tensor, segments: Sequence[Sequence[int]], window: int, dtype: torch.dtype | None) -> View:
    rows, length = ids_BS.shape
    steps = torch.arange(length, device=ids_BS.device)
    if len(segments) != rows:
        raise ValueError(f"segments: {len(segments)} rows of pieces for a batch of {rows}; give one a row")
    runs = packed_runs(tuple(tuple(pieces) for pieces in segments), length)
    near = _windowed(length, window, dtype, ids_BS.device) if 0 < window < length else Pattern()
    if len(runs) == 1:
        return View(steps[None], Pattern(), near)
    starts = torch.zeros(rows, length, dtype=torch.long)
    for row, row_end, start, end in runs:
        starts[row:row_end, start:end] = start
    return View(steps - starts.to(ids_BS.device), Pattern(runs=runs), near._replace(runs=runs))


def _cached(count: int, mask_BS: Tensor | None, cache: KVCache, window: int) -> View:
    positions_BS = cache.extend(count, mask_BS)
    return View(positions_BS, Pattern(*cache.visible(count)), Pattern(*cache.visible(count, window)))


def _fresh(ids_BS: Tensor, mask_BS: Tensor | None, window: int, dtype: torch.dtype | None) -> View:
    length = ids_BS.shape[1]
    steps = torch.arange(length, device=ids_BS.device)
    short = not 0 < window < length
    positions_BS = steps[None] if mask_BS is None else (mask_BS.long().cumsum(1) - 1).clamp(min=0)
    # Pads only at the end: no real token comes after one, so none is seen.
    if mask_BS is None or (not torch.compiler.is_compiling() and not bool((mask_BS[:, 1:] & ~mask_BS[:, :-1]).any())):
        near = Pattern() if short else _windowed(length, window, dtype, ids_BS.device)
        return View(positions_BS, Pattern(), near)
    own = steps[:, None] == steps  # a pad sees itself: no row of the softmax is empty
    seen = (steps[:, None] >= steps) & mask_BS[:, None, None, :]
    whole = Pattern(mask=seen | own)
    if short:
        return View(positions_BS, whole, whole)
    far = positions_BS[:, None, :, None] - positions_BS[:, None, None, :] >= window
    return View(positions_BS, whole, Pattern(mask=(seen & ~far) | own))
