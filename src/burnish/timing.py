"""Timing: seconds of one layer of each kind, forward, backward and recomputed, on one rank.

A roofline per operation (Williams et al. 2009): products at a share of the chip's rate that falls for small shapes, all else
at the speed of memory; a layer takes at least what the host needs to launch its kernels.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from burnish.links import Group, all_to_all_seconds, ring_seconds
from burnish.mesh import N
from burnish.rates import Rates
from burnish.work import BACKWARD, FORWARD, Block, Op

# Sharpness of "the longer of device and host", as a power mean: at equal times a fifth longer than each.
SHARP = 4
CAUSAL = 0.5  # share of full attention that a causal mask leaves


@dataclass(frozen=True)
class Layer:
    """Seconds of one layer and micro batch. Traffic is what shows beside compute, forward and backward together."""

    forward: N
    backward: N
    again: N
    launch_bound: N  # seconds of these that the device waits for the host
    tensor: N
    context: N
    expert: N


def longer(a: N, b: N) -> N:
    """A smooth maximum."""
    return (a**SHARP + b**SHARP) ** (1 / SHARP)


def product_seconds(flops: N, parts: N, rate: N, rates: Rates) -> N:
    """Seconds of matrix products; small ones fill the chip less."""
    side = np.cbrt(np.maximum(flops / 2 / np.maximum(parts, 1), 1.0))
    return flops / rate * (1 + rates.half / side)


def op_seconds(op: Op, work_bytes: N, rates: Rates) -> tuple[N, N]:
    """Device seconds of an operation, forward and backward, for the part without collectives."""
    moved = op.moved * work_bytes * rates.traffic / rates.memory
    forward, backward = moved, moved * rates.traffic_backward
    if op.name.endswith("norm"):
        extra = op.moved / 2 * rates.norm / rates.memory
        forward, backward = forward + extra, backward + extra
    if op.group == "attention":
        flash = op.flops * CAUSAL / rates.attention
        stored = op.scores * rates.score / rates.memory
        # stored scores are products of whole squares
        whole = np.where(op.scores > 0, op.flops / rates.attention, flash)
        forward = forward + whole + stored
        backward = backward + np.where(op.scores > 0, 2.0, 2.5) * whole / rates.attention_backward + 2 * stored
    elif op.group == "dispatch":
        extra = op.passed * rates.routed / rates.memory
        forward, backward = forward + extra, backward + extra
    elif op.group == "scan":
        scan = 2 * op.flops / rates.head
        forward, backward = forward + scan, backward + 2 * scan
    elif op.group:
        forward, backward = _product(op, rates, forward, backward)
    return forward, backward


def _product(op: Op, rates: Rates, forward: N, backward: N) -> tuple[N, N]:
    rate = {"head": rates.head, "router": rates.head, "experts": rates.matmul * rates.grouped}.get(
        op.group, rates.matmul
    )
    once = product_seconds(op.flops, op.parts, rate, rates)
    outputs, inputs = op.shapes[0]
    elements = outputs * inputs
    per_token = op.flops / 2 / np.maximum(elements, 1)  # tokens, for experts those of one
    if op.group == "experts":
        per_token = per_token * op.parts
    casts = 0.0 if op.group in ("head", "router") else rates.cast / rates.memory
    kept = sum((saved.elements for saved in op.saved), 0)
    forward = forward + once + kept * casts
    backward = backward + (1 + rates.trained) * once / rates.matmul_backward
    backward = backward + per_token * np.minimum(outputs, op.flops) * casts + elements * rates.accumulate / rates.memory
    if op.group == "head":
        logits = op.flops / 2 / inputs
        forward, backward = (
            forward + logits * rates.logit / 3 / rates.memory,
            backward + logits * rates.logit * 2 / 3 / rates.memory,
        )
    return forward, backward


def layer_seconds(block: Block, element: N, rates: Rates, groups: dict[str, Group]) -> Layer:
    """Seconds of one layer of a kind."""
    forward: N = 0.0
    backward: N = 0.0
    again: N = 0.0
    launches: N = 0.0
    repeated: N = 0.0
    routed = any(op.group == "experts" for op in block.ops)
    for op in block.ops:
        f, b = op_seconds(op, element, rates)
        forward, backward, again = forward + f, backward + b, again + op.again * f
        launches = launches + op.launches
        repeated = repeated + op.again * op.launches
    if routed:
        launches = launches + rates.expert_launches
    gaps = launches * rates.gap
    host = launches * rates.launch
    forward, backward = forward + gaps, backward + 2 * gaps
    whole = longer(forward, host)
    back = longer(backward, 1.3 * host)
    redo = longer(again + repeated * rates.gap, repeated * rates.launch)
    waits = whole - forward + back - backward
    return Layer(whole, back, redo, waits, *_traffic(block, rates, groups))


def _traffic(block: Block, rates: Rates, groups: dict[str, Group]) -> tuple[N, N, N]:
    """Seconds of a layer's own collectives that do not hide: tensor, context, expert."""
    shown = {"tp": rates.tp_shown, "cp": rates.cp_shown, "ep": rates.ep_shown}
    total: dict[str, N] = {"tp": 0.0, "cp": 0.0, "ep": 0.0}
    for op in block.ops:
        for comm in op.comms:
            where = groups[comm.axis]
            times = 1 + (op.again if comm.phase == FORWARD else 0)
            if comm.kind == "all_to_all":
                seconds = all_to_all_seconds(where, comm.bytes, comm.count, rates)
            elif comm.kind == "p2p":
                seconds = comm.bytes / where.bandwidth + comm.count * where.latency
            else:
                seconds = ring_seconds(where, comm.bytes, comm.count, 2 if comm.kind == "all_reduce" else 1)
            assert comm.phase in (FORWARD, BACKWARD)
            total[comm.axis] = total[comm.axis] + times * seconds * shown[comm.axis]
    return total["tp"], total["cp"], total["ep"]
