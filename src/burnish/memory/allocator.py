"""Allocator: what PyTorch's caching allocator holds for many equal tensors.

It cuts tensors of up to 1 MiB from segments of 2 MiB, up to 10 MiB from segments of 20 MiB, and rounds larger ones up to
2 MiB (c10/cuda/CUDACachingAllocator.h, the constants kSmallSize to kRoundLarge). What is left of a segment is lost to
tensors of that size.
"""

from __future__ import annotations

import numpy as np

from burnish.mesh import N

MIB = 2.0**20
SMALL, SMALL_SEGMENT = 1 * MIB, 2 * MIB
LARGE, LARGE_SEGMENT, LARGE_ROUND = 10 * MIB, 20 * MIB, 2 * MIB


def held(size: N) -> N:
    """Bytes held for each of many tensors of `size` bytes."""
    size = np.maximum(np.asarray(size, dtype=float), 1.0)
    segment = np.where(size <= SMALL, SMALL_SEGMENT, LARGE_SEGMENT)
    shared = segment / np.floor(segment / np.minimum(size, segment))
    return np.where(size < LARGE, shared, np.ceil(size / LARGE_ROUND) * LARGE_ROUND)
