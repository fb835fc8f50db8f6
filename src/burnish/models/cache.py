"""Keys and values of the positions already read, kept so that generation computes each token once.

Shape letters: B rows, S new positions, L cached positions, K key/value heads, D size of one head.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor


class CacheShape(Protocol):
    """What a cache needs to know of a model's shape."""

    @property
    def layers(self) -> int: ...
    @property
    def kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...


class LayerCache:
    """One layer's preallocated keys and values, each [B, length, K, D]."""

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        self.keys = keys
        self.values = values

    def append(self, k_BSKD: Tensor, v_BSKD: Tensor, used: int) -> tuple[Tensor, Tensor]:
        """Write after the first `used` positions; returns views of all written so far, [B, used + S, K, D]."""
        end = used + k_BSKD.shape[1]
        self.keys[:, used:end] = k_BSKD
        self.values[:, used:end] = v_BSKD
        return self.keys[:, :end], self.values[:, :end]


class KVCache:
    """Preallocated keys and values of every layer, with the number of positions used and which of them are real tokens.

    Bytes: 2 * layers * batch * length * kv_heads * head_dim * element size. Rows may be padded on either side: a pad is
    marked in `real_BL`, is never attended to and does not count as a position.
    """

    def __init__(
        self,
        config: CacheShape,
        batch: int,
        length: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        size = (config.layers, batch, length, config.kv_heads, config.head_dim)
        keys, values = (torch.zeros(size, dtype=dtype, device=device) for _ in range(2))
        self.layers = [LayerCache(k, v) for k, v in zip(keys, values, strict=True)]
        self.real_BL = torch.zeros(batch, length, dtype=torch.bool, device=device)
        self.positions_BL = torch.zeros(batch, length, dtype=torch.long, device=device)
        self.count_B = torch.zeros(batch, dtype=torch.long, device=device)  # real tokens so far: the next position
        self.used = 0
        self.padded = False

    @property
    def length(self) -> int:
        return self.real_BL.shape[1]

    def extend(self, count: int, mask_BS: Tensor | None) -> Tensor:
        """Reserve `count` more positions, real where `mask_BS` is True (None: all). Returns their positions [B, S].

        The layers then append theirs at `used - count`. Raises ValueError when they do not fit.
        """
        end = self.used + count
        if end > self.length:
            raise ValueError(f"cache: {end} positions asked, {self.length} preallocated; make it at least {end} long")
        steps = torch.arange(1, count + 1, device=self.count_B.device) if mask_BS is None else mask_BS.long().cumsum(1)
        positions_BS = (self.count_B[:, None] + steps - 1).clamp(min=0)
        self.real_BL[:, self.used : end] = True if mask_BS is None else mask_BS
        self.positions_BL[:, self.used : end] = positions_BS
        self.padded |= mask_BS is not None
        self.count_B = self.count_B + (count if mask_BS is None else mask_BS.sum(1))
        self.used = end
        return positions_BS

    def visible(self, count: int, window: int = 0) -> tuple[bool, Tensor | None]:
        """What the last `count` positions may see: (causal, mask [B or 1, 1, count, used] or None when none is needed).

        A `window` hides keys whose position lies that far or farther before the query's; 0 hides none.
        """
        short = not 0 < window < self.used
        if short and not self.padded and count == self.used:
            return True, None  # the first read of whole rows
        if short and not self.padded and count == 1:
            return False, None  # one new token sees everything
        column = torch.arange(self.used, device=self.real_BL.device)
        query = column[self.used - count :, None]
        seen = (column <= query) & self.real_BL[:, None, None, : self.used]
        if not short:
            at = self.positions_BL[:, None, : self.used]
            far = at[:, :, self.used - count :, None] - at[:, :, None, :] >= window
            seen = seen & ~far
        return False, seen | (column == query)  # a pad sees itself: no row of the softmax is empty
