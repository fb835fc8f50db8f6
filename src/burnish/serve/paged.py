"""Keys and values of all sequences in one pool of pages.

Shape letters: T packed tokens, K key/value heads, D size of one head.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from burnish.models.cache import CacheShape
from burnish.serve.attention import Run
from burnish.serve.lanes import Lanes
from burnish.serve.rounding import Scales, rounded


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

    Bytes: 2 * layers * slots * K * D * element size. With `scales` they are held in 8 bits, and attended to in `dtype`. `threads`
    of a CPU share the attention of a layer. `exact` does each query by itself, over a copy of what it sees, so that neither its
    company nor its place changes a digit.
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
        # Written to once, so that the system gives the memory now and not as requests come in.
        self.keys, self.values = (torch.empty(size, dtype=held, device=device).zero_() for _ in range(2))
        self.dtype, self.scales, self.exact = dtype, scales, exact
        self.lanes = Lanes(threads if self.keys.device.type == "cpu" else 1)

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
