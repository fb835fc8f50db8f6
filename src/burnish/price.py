"""Price: a job, a mapping, a cluster and a stack -> seconds and bytes of one optimizer step, with their causes.

Everything is arithmetic on numbers or arrays: thousands of candidate mappings of one job, or thousands of published runs
of different jobs, are one call.
"""

from __future__ import annotations

from collections.abc import Mapping as Table
from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, Protocol

import numpy as np

from burnish.architecture import Architecture
from burnish.cluster import Cluster
from burnish.columns import columns
from burnish.describe import Shapes, describe
from burnish.job import Job
from burnish.links import Group, groups, ring_seconds
from burnish.mapping import Mapping
from burnish.mesh import Mesh, N, pick
from burnish.rates import Rates, rates
from burnish.stack import Stack
from burnish.techniques import checkpointing, context, experts, pipeline, tensor
from burnish.timing import Layer, layer_seconds
from burnish.work import Bytes, Work


class Setting(Protocol):
    """One thing to price."""

    job: Job
    mapping: Mapping
    cluster: Cluster
    stack: Stack


@dataclass(frozen=True)
class Step:
    """Seconds of one optimizer step, whole and by cause; arrays with one entry per candidate."""

    seconds: N
    parts: dict[str, N]
    cross_node_bytes: N


def mesh_of(mapping: Mapping, cluster_per_node: N, stage: N = 0) -> Mesh:
    """The arrangement of ranks of a mapping, as `stage` sees it."""
    m = mapping
    return Mesh(
        dp=m.dp, shard=m.shard, per_node=cluster_per_node, tp=m.tp, cp=m.cp, pp=m.pp, vpp=m.vpp, ep=m.ep, etp=m.etp, stage=stage
    )


def stages(mapping: Mapping) -> N:
    """First, second and last stage, as rows: between them they hold all that differs."""
    last = np.asarray(mapping.pp) - 1
    return np.stack([0 * last, np.minimum(last, 1), last])


def layout(model: Architecture, shapes: Shapes, mapping: Mapping, stack: Stack) -> tuple[Work, Work]:
    """The work of one rank before its stage is cut out, and of each of three stages."""
    mesh = mesh_of(mapping, 0, stages(mapping))
    size = Bytes(stack.parameter, 2, stack.gradient, stack.optimizer, 0, 2, logit=stack.logits_bytes)
    work = replace(describe(model, shapes, stack), bytes=size)
    work = tensor.predict(SimpleNamespace(sequence=mapping.sp), work, mesh)
    work = context.predict(None, work, mesh)
    work = experts.predict(None, work, mesh)
    work = checkpointing.mapped(work, mapping.recompute)
    cut = SimpleNamespace(schedule=mapping.schedule, whole=1 - np.asarray(stack.balanced))
    return work, pipeline.predict(cut, work, mesh)


def step(work: Work, staged: Work, mapping: Mapping, r: Rates, stack: Stack) -> Step:
    """Seconds of one step of the ranks of a mapping, from its `layout`."""
    around = groups(mesh_of(mapping, r.per_node), r)
    sharded = pick(np.asarray(mapping.zero) == 3, 1, 0)
    layers = [layer_seconds(block, work.bytes.activation, sharded, r, around) for block in work.blocks]
    counts = [block.layers for block in staged.blocks]

    def summed(name: str) -> N:
        return sum(n * getattr(layer, name) for n, layer in zip(counts, layers, strict=True))

    parts = {name: summed(name) for name in ("forward", "backward", "again")}
    dense, routed = parameters(staged)
    shown, gathered = data_seconds(dense, routed, parts, mapping, work.micro, around, r)
    busy = sum(parts.values()) + gathered
    mean = (busy[0] + busy[2] + busy[1] * np.maximum(mapping.pp - 2, 0)) / np.maximum(np.minimum(mapping.pp, 2), mapping.pp)
    mean = pick(np.asarray(mapping.pp) == 1, busy[0], mean)
    slowest = pick(np.asarray(stack.balanced) > 0, mean, busy.max(axis=0))
    wait = bubble(mapping, slowest, mean)
    sends = send_seconds(work, mapping, around["pp"], r)
    own = dense / pick(mapping.zero > 0, _shards(mapping), 1) + routed / pick(
        mapping.zero > 0, np.maximum(_shards(mapping) * mapping.tp // (mapping.ep * mapping.etp), 1), 1
    )
    update = own.max(axis=0) * r.update / r.memory
    causes = {
        "layers": slowest * work.micro,
        "pipeline bubble": wait,
        "pipeline sends": sends,
        "data": shown.max(axis=0),
        "optimizer": update + tensors(staged).max(axis=0) * r.tensor + r.step,
    }
    return Step(sum(causes.values()), causes, crossing_bytes(staged, dense, routed, mapping, around, r))


def crossing_bytes(
    staged: Work, dense: N, routed: N, mapping: Mapping, around: dict[str, Group], r: Rates
) -> N:
    """Bytes that all ranks together send beyond their domain of fast links in one step.

    A ring passes each domain's border once, with (n - 1)/n of the bytes of a collective.
    """
    ranks = mapping.tp * mapping.cp * mapping.dp
    weights = np.stack([1 + 0 * ranks, np.maximum(mapping.pp - 2, 0), (np.asarray(mapping.pp) > 1) * 1])
    total: N = 0.0

    def passed(where: Group, size: N, rounds: int = 1) -> N:
        domains = np.where(where.crosses, where.size / where.inside, 0)
        return rounds * size * (where.size - 1) / np.maximum(where.size, 1) * domains * ranks / np.maximum(where.size, 1)

    for block in staged.blocks:
        for comm in (comm for op in block.ops for comm in op.comms):
            size = (weights * block.layers).sum(axis=0) * comm.bytes * staged.micro
            where = around[comm.axis]
            if comm.kind in ("all_to_all", "p2p"):
                total = total + size * ranks * (where.size - where.inside) / np.maximum(where.size, 1)
            else:
                total = total + passed(where, size, 2 if comm.kind == "all_reduce" else 1)
    zero = np.asarray(mapping.zero)
    dense, routed = ((weights * size).sum(axis=0) for size in (dense, routed))
    reduced = pick(zero >= 2, staged.micro, 1)
    gathers = pick(zero == 3, 2 * staged.micro, pick(zero == 0, 0, 1))
    for size, where in ((dense, around["dp"]), (routed, around["expert"])):
        moved = size * (r.reduce * pick(zero == 0, 2, reduced) + r.gather * gathers)
        total = total + passed(where, moved)
    far = np.asarray(around["pp"].crosses) & (np.asarray(mapping.pp) > 1)
    border = np.where(far, mapping.pp * mapping.vpp - 1, 0) * ranks
    sent = staged.bytes.activation * staged.tokens * _width(staged) / mapping.tp
    return total + 2 * sent * staged.micro * border


def _shards(mapping: Mapping) -> N:
    ranks = mapping.dp * mapping.cp
    return pick(np.asarray(mapping.shard) == 0, ranks, np.minimum(mapping.shard, ranks))


def bubble(mapping: Mapping, slowest: N, mean: N) -> N:
    """Seconds in which the slowest stage waits: one micro batch of every other stage, or its chunk of it.

    Narayanan et al. 2021 (arXiv 2104.04473), sections 2.2.1 and 2.2.2; zero-bubble schedules fill it with weight gradients,
    which is a third of the work (Qi et al. 2023, section 2).
    """
    others = np.maximum(mapping.pp * mean - slowest, 0.0) * (np.asarray(mapping.pp) > 1)
    return others / mapping.vpp * pick(np.asarray(mapping.schedule) == 2, 1 / 3, 1.0)


def send_seconds(work: Work, mapping: Mapping, where: Group, r: Rates) -> N:
    """Seconds of sends between stages that show: all of them without interleaving, a share with it."""
    block = work.blocks[1]
    assert block.entering is not None
    size = work.bytes.activation * work.tokens * _width(work) / mapping.tp
    once = size / where.bandwidth + where.latency
    calls = 2 * mapping.vpp * work.micro
    shown = pick(np.asarray(mapping.vpp) > 1, r.pp_shown, 1.0)
    return pick(np.asarray(mapping.pp) > 1, calls * once * shown, 0.0)


def _width(work: Work) -> N:
    return work.blocks[-1].ops[0].shapes[0][0]


def tensors(work: Work) -> N:
    """Parameter tensors of a rank."""
    return sum(block.layers * len(op.shapes) for block in work.blocks for op in block.ops) + 0 * work.blocks[0].layers


def parameters(work: Work) -> tuple[N, N]:
    """Parameters of a rank: those every data-parallel rank has, and those of its experts."""
    dense: N = 0.0
    routed: N = 0.0
    for block in work.blocks:
        for op in block.ops:
            count = sum(np.prod(np.broadcast_arrays(*shape), axis=0) if len(shape) > 1 else shape[0] for shape in op.shapes)
            if op.group == "experts":
                routed = routed + block.layers * count
            else:
                dense = dense + block.layers * count
    return dense, routed + 0 * dense


def data_seconds(
    dense: N, routed: N, parts: dict[str, N], mapping: Mapping, micro: N, around: dict[str, Group], r: Rates
) -> tuple[N, N]:
    """(seconds of data-parallel traffic that shows at the end of a step, seconds it adds to each micro batch).

    Stages 0 to 2 reduce once a step, behind the last backward; stage 3 gathers parameters for every forward and backward
    and reduces in each backward, a layer ahead of compute.
    """
    whole, sharded = around["dp"], _sharded(mapping, around["dp"], r)
    zero = np.asarray(mapping.zero)
    scatter = ring_seconds(sharded, dense * r.reduce, 1) + ring_seconds(around["expert"], routed * r.reduce, 1)
    gather = ring_seconds(sharded, dense * r.gather, 1) + ring_seconds(around["expert"], routed * r.gather, 1)
    copies = _copies(mapping, around["dp"], r)
    across = ring_seconds(copies, dense * r.reduce / np.maximum(_shards(mapping), 1), 1, 2) * (copies.size > 1)
    once = pick(zero == 0, 2 * scatter, scatter * (1 + r.whole) + gather) + across
    window = r.dp_hidden * (parts["backward"] + parts["again"] + parts["forward"])
    shown = once - _shorter(once, window)
    compute = {key: parts[key] * r.fsdp for key in ("forward", "backward", "again")}
    hidden = r.fsdp_hidden
    forward = compute["forward"]
    backward = compute["backward"] + compute["again"]
    beside = _beside(forward, gather, hidden) + _beside(backward, gather + scatter, hidden)
    added = beside - parts["forward"] - parts["backward"] - parts["again"]
    full = zero == 3
    return pick(full, across - _shorter(across, window), shown), pick(full, added, 0.0)


def _beside(compute: N, traffic: N, hidden: N) -> N:
    return (compute**4 + (hidden * traffic) ** 4) ** 0.25 + (1 - hidden) * traffic


def _shorter(a: N, b: N) -> N:
    return a * b / (a**4 + b**4 + 1e-30) ** 0.25


def _sharded(mapping: Mapping, where: Group, r: Rates) -> Group:
    """The group that splits one copy of the states: neighbours of the data-parallel ranks."""
    size = _shards(mapping)
    inside = np.minimum(where.inside, size)
    out = inside < size
    return Group(size, inside, np.where(out, where.bandwidth, r.link), np.where(out, r.network_latency, r.link_latency))


def _copies(mapping: Mapping, where: Group, r: Rates) -> Group:
    """The group of ranks that hold the same shard."""
    shards = _shards(mapping)
    size = np.maximum(mapping.dp * mapping.cp // shards, 1)
    inside = np.maximum(where.inside // shards, 1)
    out = inside < size
    return Group(size, inside, np.where(out, np.minimum(r.network * inside**r.rails, r.link), r.link), np.where(out, r.network_latency, r.link_latency))


def structure(model: Architecture) -> tuple[bool, ...]:
    """Jobs of one structure can be described together."""
    return tuple(bool(size) for size in (model.experts, model.kv_rank, model.mixer_layers, model.positions))


def price(job: Job, mapping: Mapping, cluster: Cluster, stack: Stack) -> Step:
    """Seconds, causes and bytes across domains of one step of a job, for one mapping or for arrays of candidates."""
    work, staged = layout(job.model, shapes_of(job, mapping, stack), mapping, stack)
    return step(work, staged, mapping, rates(job, cluster, stack), stack)


def price_many(settings: Sequence[Setting], c: Table[str, float] | None = None) -> N:
    """Seconds of many settings, in order."""
    seconds = np.zeros(len(settings))
    for members in alike(settings):
        table = [settings[k] for k in members]
        mapping = columns([s.mapping for s in table])
        stack = columns([s.stack for s in table])
        work, staged = laid_out(table)
        r = columns([rates(s.job, s.cluster, s.stack, c) for s in table])
        seconds[members] = step(work, staged, mapping, r, stack).seconds
    return seconds


def alike(settings: Sequence[Setting]) -> list[list[int]]:
    """Indices of settings that can be described together."""
    kinds: dict[tuple, list[int]] = {}
    for k, setting in enumerate(settings):
        kinds.setdefault((structure(setting.job.model), setting.stack.chunked_loss), []).append(k)
    return list(kinds.values())


def laid_out(settings: Sequence[Setting]) -> tuple[Work, Work]:
    """The layouts of settings that are alike, as arrays."""
    model = columns([s.job.model for s in settings])
    shapes = columns([shapes_of(s.job, s.mapping, s.stack) for s in settings])
    return layout(model, shapes, columns([s.mapping for s in settings]), columns([s.stack for s in settings]))


def shapes_of(job: Job, mapping: Mapping, stack: Stack) -> Shapes:
    """The micro batch of a mapping."""
    micro = np.maximum(job.global_batch // (mapping.dp * mapping.micro_batch), 1)
    kernel = stack.flash if job.attention == "flash" else job.attention
    return Shapes(mapping.micro_batch, job.seq, micro, pairs=mapping.micro_batch * job.seq * job.seq * job.filled, scores=int(kernel in ("unfused", "fused-softmax")))
