"""Step time: seconds of one optimizer step of a pipeline of stages, whole and by cause."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from burnish.crossing import crossing_bytes
from burnish.data_time import SHARDED, data_seconds, expert_copies, shards
from burnish.links import Group, groups
from burnish.mapping import CUT, SCHEDULE, Mapping
from burnish.mesh import Mesh, N, pick
from burnish.rates import Rates
from burnish.stack import Stack
from burnish.timing import layer_seconds
from burnish.work import Work

BY_TIME = CUT.index("time")
ZERO_BUBBLE = SCHEDULE.index("zero-bubble")


@dataclass(frozen=True)
class Step:
    """Seconds of one optimizer step, whole and by cause; arrays with one entry per candidate."""

    seconds: N
    parts: dict[str, N]
    cross_node_bytes: N


def mesh_of(mapping: Mapping, per_node: N = 8, stage: N = 0) -> Mesh:
    """The arrangement of ranks of a mapping, as `stage` sees it."""
    axes = {name: getattr(mapping, name) for name in ("dp", "shard", "tp", "cp", "pp", "vpp", "ep", "etp")}
    return Mesh(per_node=per_node, stage=stage, **axes)


def stages(mapping: Mapping) -> N:
    """First, second and last stage, as rows: between them they hold all that differs."""
    last = np.asarray(mapping.pp) - 1
    return np.stack([0 * last, np.minimum(last, 1), last])


def step(work: Work, staged: Work, mapping: Mapping, r: Rates, stack: Stack) -> Step:
    """Seconds of one step of the ranks of a mapping, from the work of a whole rank and of three stages."""
    around = groups(mesh_of(mapping, r.per_node), r)
    sharded = pick(np.asarray(mapping.zero) == SHARDED, 1, 0)
    layers = [layer_seconds(block, work.bytes.activation, sharded, r, around) for block in work.blocks]

    def summed(name: str) -> N:
        own = zip(staged.blocks, layers, strict=True)
        return sum(block.layers * getattr(layer, name) for block, layer in own)

    phases = {name: summed(name) for name in ("forward", "backward", "again")}
    owned = parameters(staged)
    traffic = data_seconds(owned, phases, mapping, work.micro, around, r)
    busy = np.asarray(sum(phases.values()) + traffic.each)
    mean, worst = mean_of_stages(busy, mapping), busy.argmax(axis=0)
    by_time = np.asarray(stack.balanced) == BY_TIME

    def of_slowest(seconds: N) -> N:
        full = np.broadcast_to(seconds, np.shape(busy))
        own = np.take_along_axis(full, np.expand_dims(worst, 0), axis=0)[0]
        return pick(by_time, mean_of_stages(full, mapping), own)

    shown = {name: of_slowest(summed(name)) for name in ("recompute", "tensor", "context", "expert", "waits")}
    shown["sharding"] = of_slowest(traffic.each)
    slowest = of_slowest(busy)
    compute = slowest - sum(shown.values())
    names = {"waits": "waiting for the host"}
    causes = {"compute": compute * work.micro, **{names.get(k, k): v * work.micro for k, v in shown.items()}}
    causes |= {
        "pipeline bubble": bubble(mapping, slowest, mean),
        "pipeline sends": send_seconds(work, mapping, around["pp"], r),
        "data": np.max(traffic.once, axis=0),
        "optimizer": update_seconds(staged, owned, mapping, r),
    }
    crossing = crossing_bytes(staged, owned, mapping, around, width(work), r)
    return Step(sum(causes.values()), causes, crossing)


def mean_of_stages(seconds: np.ndarray, mapping: Mapping) -> N:
    """The mean over all stages, of which the middle row stands for all but the ends."""
    pp = np.asarray(mapping.pp)
    whole = seconds[0] + seconds[2] + seconds[1] * np.maximum(pp - 2, 0)
    return pick(pp == 1, seconds[0], whole / np.maximum(pp, 2))


def bubble(mapping: Mapping, slowest: N, mean: N) -> N:
    """Seconds in which the slowest stage waits: one micro batch of every other stage, or its chunk of it.

    Narayanan et al. 2021 (arXiv 2104.04473), sections 2.2.1 and 2.2.2; zero-bubble schedules fill it with weight gradients,
    which leaves a third of it (Qi et al. 2023, arXiv 2401.10241, section 2).
    """
    others = np.maximum(mapping.pp * mean - slowest, 0.0) * (np.asarray(mapping.pp) > 1)
    return others / mapping.vpp * pick(np.asarray(mapping.schedule) == ZERO_BUBBLE, 1 / 3, 1.0)


def send_seconds(work: Work, mapping: Mapping, where: Group, r: Rates) -> N:
    """Seconds of sends between stages that show: all of them without interleaving, a share with it."""
    size = work.bytes.activation * work.tokens * width(work) / mapping.tp
    calls = 2 * mapping.vpp * work.micro
    shown = pick(np.asarray(mapping.vpp) > 1, r.pp_shown, 1.0)
    return pick(np.asarray(mapping.pp) > 1, calls * (size / where.bandwidth + where.latency) * shown, 0.0)


def width(work: Work) -> N:
    """Elements of a hidden state."""
    return work.blocks[-1].ops[0].shapes[0][0]


def update_seconds(staged: Work, owned: tuple[N, N], mapping: Mapping, r: Rates) -> N:
    """Seconds of the optimizer's step: the states a rank owns, its tensors one by one where they are distributed so.

    Offloaded, gradients go to the host, its processors update the masters, and parameters come back (Ren et al. 2021,
    "ZeRO-Offload", arXiv 2101.06840, sections 4 and 5).
    """
    split = np.asarray(mapping.zero) > 0
    own = np.max(owned[0] / pick(split, shards(mapping), 1) + owned[1] / pick(split, expert_copies(mapping), 1), axis=0)
    shapes = ((block.layers, shape) for block in staged.blocks for op in block.ops for shape in op.shapes)
    tensors = sum(layers * (np.asarray(shape[0]) * shape[-1] > 0) for layers, shape in shapes)
    chips = np.minimum(r.per_node, mapping.gpus)
    away = own * (r.reduce + r.gather) / r.host_link + own * chips / r.host_update
    update = pick(np.asarray(mapping.offload) > 0, away * r.trained, own * r.update / r.memory)
    apart = (np.asarray(mapping.zero) == SHARDED) * np.max(tensors, axis=0)
    return update + apart * r.tensor + r.step


def parameters(work: Work) -> tuple[N, N]:
    """Parameters of a rank: those every data-parallel rank has, and those of its experts."""
    dense: N = 0.0
    routed: N = 0.0
    for block in work.blocks:
        for op in block.ops:
            count = sum((shape[0] * shape[1] if len(shape) > 1 else shape[0] for shape in op.shapes), 0.0)
            if op.group == "experts":
                routed = routed + block.layers * count
            else:
                dense = dense + block.layers * count
    return dense, routed + 0 * dense
