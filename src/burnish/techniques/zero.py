"""Data parallelism with ZeRO: split optimizer state, gradients and parameters over the data-parallel ranks.

Idea    Rajbhandari et al. 2020, "ZeRO: memory optimizations toward training trillion parameter models" (arXiv 1910.02054):
        every rank sees its own rows; stage 0 keeps all states on each rank, stage 1 splits the optimizer state, stage 2
        the gradients too, stage 3 the parameters too. Splitting is by rows of each tensor, padded to equal parts, as
        PyTorch's fully sharded data parallel does it (Zhao et al. 2023, arXiv 2304.11277).
        Hybrid: `parallel.shard` < `parallel.dp` splits over `shard` neighbours and keeps copies across (section 3.2.2
        there).
Gain    bytes an element and rank for a stack of p bytes of parameters, c of parameters in compute, g of gradients and o of
        optimizer, over N shards:
            stage 0   p + g + o
            stage 1   c + (p + o)/N + g while micro batches add up, g/N with one
            stage 2   c + (p + g + o)/N
            stage 3   (p + g + o)/N
        The paper's stack (section 3.1: 2 for 16-bit parameters, 2 for 16-bit gradients, 12 for float32 masters and moments)
        is c = g = 2, p = 4, o = 8: 4 + 12/N, 2 + 14/N, and 16/N with its 16-bit shards. Ours in float32 has p = c = g = 4,
        o = 8: 4 + 12/N + (4 or 4/N), 4 + 16/N, 16/N; in 16 bits c = 2, vectors apart. The whole copy c stands beside the
        float32 shards it is gathered from.
Price   bytes sent on the data-parallel axis in a step of A micro batches, P of parameters and G of gradients:
            stage 0   one all-reduce of G
            stage 1   a reduce-scatter of G in the last backward, an all-gather of P after the update
            stage 2   A reduce-scatters of G, one all-gather of P after the update and none in forward
            stage 3   A reduce-scatters of G, 2 A all-gathers of P: in forward and again in backward
        with copies, also one all-reduce of G/shards.
Limits  stage 2 sends more than stage 1 when A > 1: stage 1 is the better one where whole gradients fit. Stages 2 and 3
        hold whole gradients of one group at a time, and those of what stands outside the layers until backward ends.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from pydantic import model_validator

from burnish.errors import UserError
from burnish.mesh import Mesh, N, pick
from burnish.section import Section
from burnish.techniques.precision import masters_as_parameters
from burnish.work import BACKWARD, FORWARD, STEP, Bytes, Comm, Sharding, Work, shard_elements

if TYPE_CHECKING:
    from burnish.train.step import Trainable


class Config(Section):
    """`stage` 0 (plain data parallel), 1, 2 or 3. `offload` keeps what is split in host memory between uses."""

    stage: Literal[0, 1, 2, 3] = 0
    offload: bool = False

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        return {"stage": value} if isinstance(value, int) else value


def check(config: Config, work: Work, mesh: Mesh) -> None:
    """Raises UserError for a stage that would split nothing and for shards that do not fit the ranks."""
    dp, shard = mesh.dp, mesh.shard
    if shard and dp % shard:
        raise UserError(f"parallel.shard {shard} does not divide parallel.dp {dp}; use {_divisors(int(dp))}")
    if config.stage == 0 and shard not in (0, dp):
        raise UserError(
            f"parallel.shard {shard}: zero stage 0 splits nothing; use stage 1, 2 or 3, or parallel.shard=0"
        )
    if config.stage == 0 and config.offload:
        raise UserError("parallel.zero.offload moves what is split, and stage 0 splits nothing; use stage 1, 2 or 3")
    if config.stage and mesh.shards == 1 and dp > 1:
        raise UserError(
            f"parallel.shard 1 with zero stage {config.stage} splits nothing; use stage 0, or parallel.shard of "
            f"{_divisors(int(dp))[1:]}"
        )


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]


def predict(config: Config, work: Work, mesh: Mesh, table: Any = None) -> Work:
    """The work with states split over `mesh.shards` ranks, and the collectives that keep them whole where needed.

    One collective a group of parameters: each decoder layer is a group, all that stands outside the layers is one more.
    """
    if config.stage == 0:
        reduce = _comm(
            "all_reduce", "dp", BACKWARD, mesh.dp > 1, _gradients(work, 1), _groups(work, trained=True), once=True
        )
        buffer = pick(mesh.dp > 1, _passing(0, work, 1), 0)
        return replace(work, comms=(*work.comms, reduce), passing=work.passing + buffer)
    return replace(_sharded(config, work, mesh), comms=work.comms + _collectives(config.stage, work, mesh))


def _sharded(config: Config, work: Work, mesh: Mesh) -> Work:
    """The states of one rank. On one rank nothing is split, unless its states are offloaded."""
    parts, stage = mesh.shards, config.stage
    apart = (parts > 1) | config.offload
    whole_gradients = pick(work.micro > 1, 1, parts) if stage == 1 else parts
    split = Sharding(parts, whole_gradients, parts, mesh.shard_index, config.offload)
    gathered = pick(apart, _gathered(work, parts) if stage < 3 else 0, work.gathered)
    passing = work.passing + pick(apart, _passing(stage, work, parts), 0)
    outside = work.bytes.compute * _group_elements(work, parts)[0] if stage == 3 else 0
    size = _masters_apart(work.bytes, apart)
    return replace(
        work,
        bytes=size,
        sharding=split,
        gathered=gathered,
        passing=passing,
        visiting=work.visiting + pick(apart, outside, 0),
    )


def _masters_apart(size: Bytes, apart: N) -> Bytes:
    """With 16-bit compute the shards are the masters, where there are shards."""
    split = masters_as_parameters(size)
    if split == size:
        return size
    parameter, optimizer = (
        pick(apart, getattr(split, name), getattr(size, name)) for name in ("parameter", "optimizer")
    )
    return replace(split, parameter=parameter, optimizer=optimizer)


def _gathered(work: Work, parts: N) -> N:
    """Bytes of all parameters gathered for use: matrices in the format of products, vectors in that of the shards."""
    matrix, vector = work.bytes.compute, masters_as_parameters(work.bytes).parameter
    each = ((n * shard_elements(shape, parts), matrix if len(shape) > 1 else vector) for n, shape in work.shapes())
    return sum(parts * elements * size for elements, size in each)


def _passing(stage: int, work: Work, parts: N) -> N:
    """Bytes that come and go inside a step, beside states and saved tensors: an upper bound, for groups of equal order.

    Gradients of the group being reduced stand whole beside the buffer they are sent from; where whole gradients are
    states already, the buffer alone is added. Stage 3 holds what stands outside the layers, and the buffer it is gathered in
    or, while a layer's backward runs, the layer and the one gathered ahead of it.
    """
    outside, layer = _group_elements(work, parts, trained=True)
    size, largest = work.bytes, pick(outside > layer, outside, layer)
    whole = pick(work.micro > 1, 1, 2) if stage == 1 else 1 if stage == 0 else 2
    reducing = whole * size.gradient * largest + (size.gradient * largest // parts if stage else 0)
    if stage < 3:
        return reducing
    all_outside, all_layer = _group_elements(work, parts)
    beside = pick(all_outside > 2 * all_layer, all_outside, 2 * all_layer)
    gathered = size.compute * (all_outside + beside) + 2 * size.gradient * layer
    return pick(gathered > reducing, gathered, reducing)


def _group_elements(work: Work, parts: N, trained: bool = False) -> tuple[N, N]:
    """Padded elements of what is outside the layers, and of the largest layer. `trained`: only those with gradients."""
    outside: N = 0
    layer: N = 0
    for block in work.blocks:
        held = (shape for op in block.ops if op.trained or not trained for shape in op.shapes)
        own: N = sum((parts * shard_elements(shape, parts) for shape in held), 0)
        if block.entering:
            layer = pick(own > layer, own, layer)
        else:
            outside = outside + block.layers * own
    return outside, layer


def _groups(work: Work, trained: bool = False) -> N:
    """Groups of parameters that travel together: the layers, and the rest. `trained`: only those with gradients."""
    kept = [block for block in work.blocks if not trained or any(op.shapes and op.trained for op in block.ops)]
    outside = any(not block.entering and any(op.shapes for op in block.ops) for block in kept)
    return sum(block.layers for block in kept if block.entering) + int(outside)


def _gradients(work: Work, parts: N) -> N:
    """Bytes of the gradients of all trained parameters, padded to `parts` equal parts."""
    return work.bytes.gradient * sum(n * parts * shard_elements(shape, parts) for n, shape in work.shapes(trained=True))


def _collectives(stage: int, work: Work, mesh: Mesh) -> tuple[Comm, ...]:
    """Collectives that gather parameters and reduce gradients; those of a micro batch stand in forward and backward."""
    parts, groups, reduced = mesh.shards, _groups(work), _groups(work, trained=True)
    parameters, gradients, split = _gathered(work, parts), _gradients(work, parts), parts > 1
    copies = _comm("all_reduce", "replicate", BACKWARD, mesh.replicas > 1, gradients // parts, reduced, once=True)
    scatter = _comm("reduce_scatter", "shard", BACKWARD, split, gradients, reduced, once=stage == 1)
    if stage < 3:
        return scatter, copies, _comm("all_gather", "shard", STEP, split, parameters, groups)
    gathers = tuple(_comm("all_gather", "shard", phase, split, parameters, groups) for phase in (FORWARD, BACKWARD))
    return (*gathers, scatter, copies)


def _comm(kind: str, axis: str, phase: str, happens: Any, size: N, count: N, once: bool = False) -> Comm:
    """Collectives that take place only where there is more than one rank on their axis."""
    return Comm(kind, axis, phase, pick(happens, size, 0), pick(happens, count, 0), once)


def apply(config: Config, trainable: Trainable, mesh: Mesh, table: Any = None) -> Trainable:
    """Split the trainable's states over the ranks that see different rows. Raises UserError for offload without an
    accelerator."""
    from burnish.ops.replicas import Replicas
    from burnish.ops.zero_engine import Shards

    if mesh.dp == 1 and not config.offload:
        return trainable
    if config.offload:
        refuse_offload(next(trainable.parts[0].parameters()).device.type)
    groups = trainable.together(mesh).groups
    if config.stage == 0:
        for part in trainable.parts:
            trainable.join(Replicas(part, groups))
    else:
        trainable.join(Shards(trainable, groups, config.stage, config.offload))
    return trainable


def refuse_offload(device: str) -> None:
    """Raises UserError where host memory is all there is."""
    if device == "cpu":
        raise UserError("parallel.zero.offload: the states are in host memory already; it needs an accelerator")
