"""Simulate: a description and a machine's rates -> seconds and bytes of one step.

A roofline of two terms (Williams et al. 2009): matrix products at the rate of matrix products, everything else at the
speed of memory. It leaves out launch costs and communication, so it is a floor and says so.
"""

from __future__ import annotations

import numpy as np

from burnish.hardware import Chip
from burnish.mesh import N
from burnish.work import Work, flops, saved_bytes, state_bytes

# A tensor kept for backward is written and read in forward, read in backward, and its gradient written and read.
PASSES_OVER_SAVED = 5
# AdamW reads parameter, gradient and two moments and writes all but the gradient.
PASSES_OVER_STATE = 7


def step_bytes(work: Work) -> dict[str, N]:
    """Bytes on one rank at the fullest moment, by kind; offloaded shards are not there. Gradients appear as saved tensors
    go, so the sum is a ceiling."""
    state = state_bytes(work)
    if work.sharding.offloaded:
        state = {"parameter": work.gathered, "gradient": 0, "optimizer": 0}
    kinds = {f"{name}s" if name != "optimizer" else name: size for name, size in state.items()}
    return {**kinds, "saved": saved_bytes(work), "passing": work.passing}


def step_seconds(work: Work, chip: Chip, compute: str = "fp32") -> float | np.ndarray | None:
    """Seconds of one optimizer step on one rank, or None when the chip's rates are not known."""
    rate = chip.flops.get(compute, 0.0)
    if not rate or not chip.bandwidth:
        return None
    products = sum(flops(work)) / rate
    state = state_bytes(work)["parameter"]
    traffic = PASSES_OVER_SAVED * saved_bytes(work) * work.step_tokens / work.tokens + PASSES_OVER_STATE * state
    return products + traffic / chip.bandwidth
