"""Work: what one rank does in one optimizer step, as numbers a technique can rewrite.

A `Work` has one `Block` per *kind* of layer, each a tuple of `Op`s. Every number is an int or an int64 array with one
entry per candidate mapping: the same description serves an exact test against a measured step (ints) and a search over
many mappings (arrays). Units: elements, bytes, floating-point operations (one multiply-add is two).

Byte conventions of a collective: all-reduce counts the tensor, all-gather its output, reduce-scatter its input.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from burnish.mesh import N, pick

FORWARD, RECOMPUTE, BACKWARD, STEP = "forward", "recompute", "backward", "step"

# What a tensor saved for backward holds decides how many bytes an element takes.
ACTIVATION, STATISTIC, INDEX = "activation", "statistic", "index"
# How tensor parallelism divides an operation or a tensor: its output features (column, and with it the heads it makes),
# its input features (row), its heads but not what they share (heads), or its tokens, which only sequence parallelism does.
# Experts go their own way.
COLUMN, ROW, HEADS, TOKENS, EXPERT = "column", "row", "heads", "tokens", "expert"
WHOLE = "whole"  # nothing of it: an adapter's narrow product, which every rank makes
# Copies in the other format, which exist only where products are made in 16 bits.
ROUNDED, WIDENED = "rounded", "widened"
QUANTISED = "quantised"  # one in 8 bits, which only some products read


@dataclass(frozen=True)
class Saved:
    """A tensor of one micro batch that is kept from forward to backward, or there while an operation runs."""

    name: str
    role: str
    elements: N
    split: str = TOKENS  # what divides it over tensor-parallel ranks


@dataclass(frozen=True)
class Comm:
    """Collectives on one mesh axis: `count` calls, `bytes` over all of them; per micro batch, or `once` a step.

    What has phase `step` happens once a step by itself.
    """

    kind: str
    axis: str
    phase: str
    bytes: N
    count: N = 1
    once: bool = False
    beside: bool = False  # runs beside a product that does not wait for it


@dataclass(frozen=True)
class Op:
    """One operation of a layer: its parameter tensors, its FLOPs each way, what it saves, what it sends."""

    name: str
    shapes: tuple[tuple[N, ...], ...] = ()
    flops: N = 0
    backward: N = 0
    saved: tuple[Saved, ...] = ()
    transient: tuple[Saved, ...] = ()  # there while its forward runs, beside what it saves; large ones only
    comms: tuple[Comm, ...] = ()
    trained: bool = True  # whether its parameters get gradients and optimizer state
    partial: tuple[tuple[str, tuple[N, ...]], ...] = ()  # (axis, shape): gradients that are summed at the end of a step
    group: str = ""  # "matmul", "attention", "adapter" or "" (cheap); what selective recomputation tells apart
    split: str = TOKENS
    moved: N = 0  # bytes that a forward without products reads and writes, in a stack that fuses what can be fused
    loose: N = 0  # elements of what stacks run as several kernels (an activation without a gate)
    scores: N = 0  # attention scores written to memory, elements
    made: N = 0  # elements of a product's result
    width: N = 128  # size of an attention head
    passed: N = 0  # elements that other ranks need of it: keys and values, routed tokens
    parts: N = 1  # separate products that `flops` are divided among (experts)
    launches: N = 1  # kernels of its forward
    again: N = 0  # share of its forward that backward runs again
    windowed: N = 0  # how many layers, the last ones, read the window it keeps
    gives: tuple[Saved, ...] = ()  # what it returns to whoever keeps results, where it saves nothing itself


@dataclass(frozen=True)
class Block:
    """A kind of layer: `layers` copies of it, one after another. `recomputed` is forward FLOPs run again in backward."""

    name: str
    layers: N
    ops: tuple[Op, ...]
    recomputed: N = 0
    entering: Saved | None = None  # what a recomputed layer must keep: its input
    returning: tuple[Saved, ...] = ()  # what its second forward brings back, one layer at a time


@dataclass(frozen=True)
class Bytes:
    """Bytes an element, by what it is: the part of a software stack that decides state sizes."""

    parameter: N = 4
    compute: N = 4  # the copy of a parameter that takes part in matrix products
    gradient: N = 4
    optimizer: N = 8
    optimizer_tensor: N = 4  # per parameter tensor: AdamW keeps its step count as one fp32 scalar
    activation: N = 4
    statistic: N = 4
    index: N = 8
    rounded: N = 0
    widened: N = 0
    quantised: N = 1
    logit: N = 4

    def of(self, saved: Iterable[Saved]) -> N:
        """Bytes of tensors by their roles."""
        return sum(getattr(self, tensor.role) * tensor.elements for tensor in saved)


@dataclass(frozen=True)
class Sharding:
    """Into how many parts each kind of state is split over the data-parallel ranks; 1 = whole on each rank.

    `index` is the part this rank holds. `offloaded`: what is split stays in host memory between uses.
    """

    parameter: N = 1
    gradient: N = 1
    optimizer: N = 1
    index: N = 0
    offloaded: bool = False


@dataclass(frozen=True)
class Work:
    """One rank, one optimizer step: `micro` micro batches through `blocks`, then the optimizer."""

    blocks: tuple[Block, ...]
    micro: N
    tokens: N  # per micro batch, the last of a step may be smaller
    step_tokens: N  # of all micro batches of a step
    bytes: Bytes = Bytes()
    sharding: Sharding = Sharding()
    comms: tuple[Comm, ...] = ()
    gathered: N = 0  # bytes of whole parameters held beside the shards (a compute copy)
    visiting: N = 0  # bytes of parameters gathered, and of what stages pass on, while forward is at its end
    passing: N = 0  # bytes that come and go in backward: parameters gathered for use, gradients and what stages pass on
    flight: N = 1  # micro batches whose saved tensors stand at once
    head_layers: N = 0  # what the head weighs, in layers, by the products of both before anything divides them

    def edit(self, change: Callable[[Block], Block]) -> Work:
        """This work with every block rewritten."""
        return replace(self, blocks=tuple(change(block) for block in self.blocks))

    def shapes(self, trained: bool = False) -> Iterator[tuple[N, tuple[N, ...]]]:
        """(copies, shape) of every parameter tensor, or only of trained ones; a tied tensor appears once."""
        for block in self.blocks:
            for op in block.ops:
                for shape in op.shapes if op.trained or not trained else ():
                    yield block.layers, shape


def shard_elements(shape: tuple[N, ...], parts: N) -> N:
    """Elements of one rank's shard as it is stored: dimension 0 is split and padded to equal parts, as FSDP2 does."""
    return -(-shape[0] // parts) * prod(shape[1:])


def owned_elements(shape: tuple[N, ...], parts: N, index: N) -> N:
    """Elements of shard `index` without padding: the last shards of an odd dimension are smaller, or empty."""
    rows = -(-shape[0] // parts)
    left = shape[0] - index * rows
    return pick(left > rows, rows, pick(left > 0, left, 0)) * prod(shape[1:])


Observation = Counter  # Counter[(metric, phase, axis, kind)] -> int


def fold(work: Work) -> Observation:
    """The description as the observation that one step of it should give.

    Metrics: parameter, gradient, optimizer, saved (bytes), flops, comm_count, comm_bytes. `saved` is what the forward of
    one micro batch keeps; the others are of one whole optimizer step.
    """
    seen: Any = Counter()
    for metric, size in state_bytes(work).items():
        seen[metric, "", "", ""] = size
    seen["saved", FORWARD, "", ""] = saved_bytes(work)
    for phase, count in zip((FORWARD, RECOMPUTE, BACKWARD), flops(work), strict=True):
        seen["flops", phase, "", ""] = count
    for layers, comm in _comms(work):
        times = layers if comm.once or comm.phase == STEP else layers * work.micro
        key = (comm.phase, comm.axis, comm.kind)
        seen["comm_count", *key] += comm.count * times
        seen["comm_bytes", *key] += comm.bytes * times
    for axis, size in partial_bytes(work).items():
        seen["comm_count", STEP, axis, "all_reduce"] += pick(size > 0, 1, 0)
        seen["comm_bytes", STEP, axis, "all_reduce"] += size
    return Counter({key: value for key, value in seen.items() if np.any(value)})


def state_bytes(work: Work) -> dict[str, N]:
    """Bytes of parameters, gradients and optimizer state on one rank; whole compute copies count as parameters.

    Gradients are the most that stands between two micro batches or at the update.
    """
    size, split = work.bytes, work.sharding
    parameter: N = work.gathered
    gradient: N = 0
    optimizer: N = 0
    for n, shape in work.shapes():
        parameter = parameter + n * size.parameter * shard_elements(shape, split.parameter)
    for n, shape in work.shapes(trained=True):
        gradient = gradient + n * size.gradient * shard_elements(shape, split.gradient)
        owned = owned_elements(shape, split.optimizer, split.index)
        optimizer = optimizer + n * (size.optimizer * owned + size.optimizer_tensor)
    return {"parameter": parameter, "gradient": gradient, "optimizer": optimizer}


def partial_bytes(work: Work) -> dict[str, N]:
    """Bytes of the gradients that are summed over each axis once a step, as the shards that a rank owns by then."""
    split, sums = work.sharding, dict[str, N]()
    for block in work.blocks:
        for op in block.ops:
            for axis, shape in op.partial if op.trained else ():
                owned = owned_elements(shape, split.optimizer, split.index)
                sums[axis] = sums.get(axis, 0) + block.layers * work.bytes.gradient * owned
    return sums


def saved_bytes(work: Work) -> N:
    """Bytes that the forward of one micro batch keeps for its backward."""
    return sum(block.layers * work.bytes.of(op.saved) for block in work.blocks for op in block.ops)


def transient_bytes(work: Work) -> N:
    """Most bytes that an operation of the last kind of layer, where everything else is saved already, holds in passing."""
    return sum(work.bytes.of(op.transient) for op in work.blocks[-1].ops)


def backward_bytes(work: Work) -> N:
    """Most bytes that the backward of one layer holds beside what is saved: what a second forward brings back, and the
    gradient of its largest tensor, made while that tensor is still there."""
    most: N = 0
    for block in work.blocks:
        held = (*block.returning, *(saved for op in block.ops for saved in op.saved))
        largest: N = 0
        for size in (work.bytes.of((tensor,)) for tensor in held if block.entering):
            largest = pick(size > largest, size, largest)
        own = pick(block.layers > 0, work.bytes.of(block.returning) + largest, 0)
        most = pick(own > most, own, most)
    return most


def flops(work: Work) -> tuple[N, N, N]:
    """FLOPs of one step: forward, recomputed, backward. All of them grow with the rows, so a ragged rest is a share."""
    forward = sum(block.layers * op.flops for block in work.blocks for op in block.ops)
    recomputed = sum(block.layers * block.recomputed for block in work.blocks)
    backward = sum(block.layers * op.backward for block in work.blocks for op in block.ops)
    return _of_step(forward, work), _of_step(recomputed, work), _of_step(backward, work)


def _of_step(count: N, work: Work) -> N:
    """From one full micro batch to the step; divided first where that is exact, so that int64 holds what a step takes."""
    whole, rest = work.step_tokens // work.tokens, work.step_tokens % work.tokens
    return count * whole + count // work.tokens * rest + count % work.tokens * rest // work.tokens


def _comms(work: Work) -> Iterator[tuple[N, Comm]]:
    for comm in work.comms:
        yield 1, comm
    for block in work.blocks:
        for op in block.ops:
            for comm in op.comms:
                yield block.layers, comm
