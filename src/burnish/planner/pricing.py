"""Pricing: the time and memory model asked for candidates of a request; every figure comes back as an array."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from burnish import simulate
from burnish.errors import UserError
from burnish.links import groups
from burnish.mapping import Mapping
from burnish.planner.request import Request
from burnish.price import layout, shapes_of
from burnish.rates import rates
from burnish.step_time import mesh_of
from burnish.timing import Layer, comm_seconds, layer_seconds
from burnish.work import FORWARD, Block, Work

ROUNDING = 1e-9  # share of a step below which a negative part is one


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
    with _in_range(asked):
        price = simulate.price(asked.job, mapping, asked.cluster, asked.profile)
    seconds, peak = np.asarray(price.seconds), np.asarray(price.peak)
    if not (np.all(np.isfinite(seconds) & (seconds > 0)) and np.all(np.isfinite(peak) & (peak > 0))):
        raise _too_large(asked)

    def each(value: object, shape: tuple[int, ...]) -> np.ndarray:
        return np.broadcast_to(np.asarray(value), shape)

    return Priced(
        seconds,
        {cause: _whole(each(value, seconds.shape), seconds) for cause, value in price.parts.items()},
        {kind: each(value, (3, *seconds.shape)) for kind, value in price.memory.items()},
        peak,
        each(price.cross_node_bytes, seconds.shape),
    )


def _whole(part: np.ndarray, seconds: np.ndarray) -> np.ndarray:
    """Seconds by a cause; what differences leave below zero by rounding is nothing."""
    return np.where((part < 0) & (part > -ROUNDING * seconds), 0.0, part) + 0.0


@contextmanager
def _in_range(asked: Request) -> Iterator[None]:
    """Sizes beyond the range of numbers are the request's. Raises UserError."""
    try:
        with np.errstate(over="raise", invalid="raise"):
            yield
    except (OverflowError, FloatingPointError):
        raise _too_large(asked) from None


def _too_large(asked: Request) -> UserError:
    return UserError(
        f"model {asked.model.name}, --seq {asked.seq}, --batch {asked.batch}: too large to be priced; use smaller sizes"
    )


def peak_of(asked: Request, mapping: Mapping) -> np.ndarray:
    """Bytes of the fullest stage of each candidate, alone: cheaper than a whole price."""
    if not np.size(mapping.tp):
        return np.zeros(0)
    with _in_range(asked):
        kinds = simulate.memory_of(asked.job, mapping, asked.cluster, asked.profile)
    return np.asarray(sum(kinds.values())).max(axis=0)


def tensor_seconds(asked: Request, mapping: Mapping) -> tuple[float, float]:
    """Seconds of tensor-parallel traffic of one layer and micro batch of a mapping of numbers: all, and what shows."""
    work, _ = _laid_out(asked, mapping)
    block = next(block for block in work.blocks if block.entering is not None)
    r = rates(asked.job, asked.cluster, asked.profile)
    there = groups(mesh_of(mapping, r.per_node), r)["tp"]
    sends = ((op, comm) for op in block.ops for comm in op.comms if comm.axis == "tp")
    whole = sum(comm_seconds(comm, there, r) * (1 + op.again * (comm.phase == FORWARD)) for op, comm in sends)
    return float(whole), float(_layer(asked, mapping, work, block).tensor)


def forward_share(asked: Request, mapping: Mapping) -> float:
    """Forward's share of forward and backward of a micro batch on the slowest stage of a mapping of numbers; what runs
    again is not counted."""
    work, staged = _laid_out(asked, mapping)
    layers = [_layer(asked, mapping, work, block) for block in work.blocks]
    pairs = [
        (np.ravel(own.layers * layer.forward), np.ravel(own.layers * layer.backward))
        for own, layer in zip(staged.blocks, layers, strict=True)
    ]
    forward, backward = (np.asarray(sum(phase)) for phase in zip(*pairs, strict=True))
    slowest = int(np.argmax(forward + backward))
    return float(forward[slowest] / (forward + backward)[slowest])


def _laid_out(asked: Request, mapping: Mapping) -> tuple[Work, Work]:
    job, stack = asked.job, asked.profile
    return layout(job.model, shapes_of(job, mapping, stack), mapping, stack)


def _layer(asked: Request, mapping: Mapping, work: Work, block: Block) -> Layer:
    r = rates(asked.job, asked.cluster, asked.profile)
    around = groups(mesh_of(mapping, r.per_node), r)
    return layer_seconds(block, work.bytes.activation, int(mapping.zero == 3), r, around)


def capacity(asked: Request) -> float:
    """Bytes of memory on one chip; without a bound where it is not known."""
    return asked.cluster.chip.memory or float("inf")
