"""Simulate: a description and a machine's rates -> seconds and bytes of one step.

A roofline of two terms (Williams et al. 2009): matrix products at the rate of matrix products, everything else at the
speed of memory. `step_seconds` leaves out launch costs and communication, so it is a floor and says so; a mapping over
several chips is priced with both by `price`.
"""

from __future__ import annotations

from collections.abc import Mapping as Table
from dataclasses import dataclass

import numpy as np

from burnish.cluster import Cluster
from burnish.hardware import Chip
from burnish.job import Job
from burnish.mapping import Mapping
from burnish.memory import sizes_of, stage_memory
from burnish.mesh import N, pick
from burnish.price import price as step_price
from burnish.price import price_many as price_many
from burnish.stack import Stack
from burnish.work import Work, backward_bytes, flops, saved_bytes, state_bytes, transient_bytes

# A tensor kept for backward is written and read in forward, read in backward, and its gradient written and read.
PASSES_OVER_SAVED = 5
# AdamW reads parameter, gradient and two moments and writes all but the gradient.
PASSES_OVER_STATE = 7

# An accelerator's allocator holds more than it has given out: the least of the gaps that users report, 72.6 GiB reserved
# for 68.0 allocated. Gaps of varying row lengths are larger; a process on the CPU gives back to the system.
RESERVE = 0.07


def reserve(kinds: Table[str, float], chip: Chip) -> float:
    """Bytes an accelerator's allocator keeps in pieces beside `kinds`, the bytes given out."""
    return RESERVE * sum(kinds.values()) if chip.accelerator else 0.0


def step_bytes(work: Work) -> dict[str, N]:
    """Bytes on one rank at the fuller of two moments, by kind; offloaded shards are not there.

    At the end of forward the loss makes its logits, and there are gradients only if an earlier micro batch left some. In
    backward a recomputed layer comes back and gradients of activations are made; those of parameters appear as saved
    tensors go, so this one is a ceiling. `passing` is what makes the sum that of the fuller moment. A pipeline stage has
    saved tensors of all its micro batches in flight.
    """
    state = state_bytes(work)
    if work.sharding.offloaded:
        state = {"parameter": work.gathered, "gradient": 0, "optimizer": 0}
    kinds = {f"{name}s" if name != "optimizer" else name: size for name, size in state.items()}
    forward = transient_bytes(work) + work.visiting - pick(work.micro > 1, 0, kinds["gradients"])
    backward = backward_bytes(work) + work.passing
    return {**kinds, "saved": work.flight * saved_bytes(work), "passing": pick(forward > backward, forward, backward)}


def step_seconds(work: Work, chip: Chip, compute: str = "fp32") -> float | np.ndarray | None:
    """Seconds of one optimizer step on one rank, or None when the chip's rates are not known."""
    rate = chip.flops.get(compute, 0.0)
    if not rate or not chip.bandwidth:
        return None
    products = sum(flops(work)) / rate
    state = state_bytes(work)["parameter"]
    traffic = PASSES_OVER_SAVED * saved_bytes(work) * work.step_tokens / work.tokens + PASSES_OVER_STATE * state
    return products + traffic / chip.bandwidth


@dataclass(frozen=True)
class Price:
    """One optimizer step: seconds with their causes, bytes by kind on three stages, the fullest of them, and bytes that
    leave the domains of fast links. Arrays have one entry per candidate mapping."""

    seconds: N
    parts: dict[str, N]
    memory: dict[str, N]
    peak: N
    owner: N  # which of first, second and last stage is the fullest
    cross_node_bytes: N


def price(job: Job, mapping: Mapping, cluster: Cluster, stack: Stack) -> Price:
    """What one step of `job` takes under `mapping`, which may hold arrays of candidates."""
    timed = step_price(job, mapping, cluster, stack)
    kinds = memory_of(job, mapping, cluster, stack)
    total = np.asarray(sum(kinds.values()))
    return Price(timed.seconds, timed.parts, kinds, total.max(axis=0), total.argmax(axis=0), timed.cross_node_bytes)


def memory_of(job: Job, mapping: Mapping, cluster: Cluster, stack: Stack) -> dict[str, N]:
    """Bytes by kind on the first, second and last stage of each candidate."""
    sizes = sizes_of(job, stack, cluster.chip)
    return stage_memory(job.model, (job.seq, job.global_batch), mapping, sizes, stack.balanced)
