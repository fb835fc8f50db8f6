"""Pricing: the time and memory model asked for candidates of a request; every figure comes back as an array."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from burnish import simulate
from burnish.links import groups
from burnish.mapping import Mapping
from burnish.planner.request import Request
from burnish.price import layout, shapes_of
from burnish.rates import rates
from burnish.step_time import mesh_of
from burnish.timing import layer_seconds


@dataclass(frozen=True)
class Priced:
    """n candidates: seconds (n), by cause too; bytes by kind on first, second and last stage (3, n), of the fullest stage
    (n), and sent between domains of fast links in a step (n)."""

    seconds: np.ndarray
    parts: dict[str, np.ndarray]
    memory: dict[str, np.ndarray]
    peak: np.ndarray
    cross_node_bytes: np.ndarray


def price_of(asked: Request, mapping: Mapping) -> Priced:
    """Candidates of a request (arrays), priced; none cost nothing."""
    if not np.size(mapping.tp):
        none = np.zeros(0)
        return Priced(none, {}, {}, none, none)
    price = simulate.price(asked.job, mapping, asked.cluster, asked.profile)
    seconds, peak = np.asarray(price.seconds), np.asarray(price.peak)

    def each(value: object, shape: tuple[int, ...]) -> np.ndarray:
        return np.broadcast_to(np.asarray(value), shape)

    return Priced(
        seconds,
        {cause: each(value, seconds.shape) for cause, value in price.parts.items()},
        {kind: each(value, (3, *seconds.shape)) for kind, value in price.memory.items()},
        peak,
        each(price.cross_node_bytes, seconds.shape),
    )


def peak_of(asked: Request, mapping: Mapping) -> np.ndarray:
    """Bytes of the fullest stage of each candidate, alone: cheaper than a whole price."""
    if not np.size(mapping.tp):
        return np.zeros(0)
    kinds = simulate.memory_of(asked.job, mapping, asked.cluster, asked.profile)
    return np.asarray(sum(kinds.values())).max(axis=0)


def tensor_seconds(asked: Request, mapping: Mapping) -> float:
    """Seconds of tensor-parallel traffic that one layer and micro batch of a mapping of numbers shows beside compute."""
    job, stack = asked.job, asked.profile
    work, _ = layout(job.model, shapes_of(job, mapping, stack), mapping, stack)
    r = rates(job, asked.cluster, stack)
    around = groups(mesh_of(mapping, r.per_node), r)
    block = next(block for block in work.blocks if block.entering is not None)
    return float(layer_seconds(block, work.bytes.activation, int(mapping.zero == 3), r, around).tensor)


def capacity(asked: Request) -> float:
    """Bytes of memory on one chip; without a bound where it is not known."""
    return asked.cluster.chip.memory or float("inf")
