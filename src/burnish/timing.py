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
from burnish.work import BACKWARD, FORWARD, Block, Comm, Op

# Sharpness of "the longer of device and host", as a power mean: at equal times a seventh longer than each.
SHARP = 5
AGAIN = "again"  # the phase of a second forward
AXES = ("tp", "cp", "ep")
WIDE = 128  # head size at which attention rates are given
CAUSAL = 0.5  # share of full attention that a causal mask leaves


@dataclass(frozen=True)
class Layer:
    """Seconds of one layer and micro batch, with the traffic that shows beside compute, and its parts by cause."""

    forward: N
    backward: N
    again: N
    recompute: N  # seconds of the second forward without its traffic
    waits: N  # seconds of these that the device waits for the host
    tensor: N  # seconds of these that are tensor-, context- and expert-parallel traffic
    context: N
    expert: N


def longer(a: N, b: N) -> N:
    """A smooth maximum."""
    return (a**SHARP + b**SHARP) ** (1 / SHARP)


def shorter(a: N, b: N) -> N:
    """A smooth minimum."""
    return a * b / np.maximum(longer(a, b), 1e-30)


def product_seconds(flops: N, parts: N, rate: N, rates: Rates) -> N:
    """Seconds of matrix products; small ones fill the chip less."""
    side = np.cbrt(np.maximum(flops / 2 / np.maximum(parts, 1), 1.0))
    return flops / rate * (1 + rates.half / side)


def narrow(width: N, rates: Rates) -> N:
    """How much longer a product of attention takes on heads narrower than the usual size: exponentials do not shrink."""
    return (1 + rates.head_half / width) / (1 + rates.head_half / WIDE)


def op_seconds(op: Op, work_bytes: N, rates: Rates) -> tuple[N, N]:
    """Device seconds of an operation, forward and backward, for the part without collectives."""
    moved = (op.moved * work_bytes * rates.traffic + op.loose * rates.loose) / rates.memory
    forward, backward = moved, moved * rates.traffic_backward
    if op.name.endswith("norm"):
        extra = op.moved / 2 * rates.norm / rates.memory
        forward, backward = forward + extra, backward + extra
    if op.group == "attention":
        flash = op.flops * CAUSAL / rates.attention * narrow(op.width, rates)
        stored = op.scores * rates.score / rates.memory
        # stored scores are products of whole squares
        whole = np.where(op.scores > 0, op.flops / rates.attention, flash)
        forward = forward + whole + stored
        backward = backward + np.where(op.scores > 0, 2.0, 2.5) * whole / rates.attention_backward + 2 * stored
    elif op.group == "dispatch":
        extra = op.passed * rates.routed / rates.memory
        forward, backward = forward + extra, backward + extra
    elif op.group == "scan":
        scan = rates.scan * (op.flops / rates.head + moved)
        forward, backward = forward + scan, backward + 2 * scan
    elif op.group:
        forward, backward = _product(op, rates, forward, backward)
    return forward, backward


def _product(op: Op, rates: Rates, forward: N, backward: N) -> tuple[N, N]:
    rate = {"head": rates.head, "router": rates.head, "experts": rates.matmul * rates.grouped}.get(
        op.group, rates.matmul
    )
    once = product_seconds(op.flops, op.parts, rate, rates)
    elements = sum((shape[0] * shape[1] for shape in op.shapes if len(shape) > 1), 0)
    casts = 0.0 if op.group in ("head", "router") else rates.cast / rates.memory
    kept = sum((saved.elements for saved in op.saved), 0)
    opened = elements * rates.dequantize / rates.memory if op.group == "matmul" else 0.0
    forward = forward + once + kept * casts + opened
    backward = backward + (1 + rates.trained) * once / rates.matmul_backward + opened
    backward = backward + op.made * casts + elements * rates.accumulate / rates.memory
    if op.group == "head":
        passes = op.made * rates.logit / rates.memory
        forward, backward = forward + passes / 3, backward + passes * 2 / 3
    return forward, backward


def layer_seconds(block: Block, element: N, sharded: N, rates: Rates, groups: dict[str, Group]) -> Layer:
    """Seconds of one layer of a kind; `element` bytes an activation, `sharded` 1 where its parameters are gathered for it."""
    compute: dict[str, N] = {FORWARD: 0.0, BACKWARD: 0.0, AGAIN: 0.0}
    attention = dict(compute)
    launches: N = 0.0
    repeated: N = 0.0
    for op in block.ops:
        forward, backward = op_seconds(op, element, rates)
        for phase, seconds in ((FORWARD, forward), (BACKWARD, backward), (AGAIN, op.again * forward)):
            compute[phase] = compute[phase] + seconds
            attention[phase] = attention[phase] + (seconds if op.group == "attention" else 0.0)
        calls = op.launches + sum((comm.count for comm in op.comms if comm.phase == FORWARD), 0)
        launches = launches + calls
        repeated = repeated + op.again * calls
    if any(op.group == "experts" for op in block.ops):
        launches = launches + rates.expert_launches
    if block.entering is not None:
        launches = launches + rates.adapter_launches + sharded * rates.fsdp_launches
    sent = launches * rates.launch
    traffic = {phase: _shown(block, phase, compute[phase], attention[phase], rates, groups) for phase in compute}
    gaps = {FORWARD: launches, BACKWARD: 2 * launches, AGAIN: repeated}
    device = {p: compute[p] + gaps[p] * rates.gap + sum(traffic[p].values()) for p in compute}
    host = {FORWARD: sent, BACKWARD: rates.launch_backward * sent, AGAIN: repeated * rates.launch}
    whole = {phase: longer(device[phase], host[phase]) for phase in compute}
    waits = sum(whole.values()) - sum(device.values())
    by_axis = {axis: sum(traffic[phase][axis] for phase in compute) for axis in AXES}
    return Layer(whole[FORWARD], whole[BACKWARD], whole[AGAIN], compute[AGAIN], waits, *by_axis.values())


def _shown(block: Block, phase: str, compute: N, attention: N, rates: Rates, groups: dict[str, Group]) -> dict[str, N]:
    """Seconds of a layer's own collectives in one phase that do not hide, by axis.

    Tensor-parallel traffic hides behind all but attention, and on fast links only, the ring of context parallelism behind
    attention; no more can hide than there is to hide behind.
    """
    total: dict[str, N] = dict.fromkeys(AXES, 0.0)
    beside: N = 0.0
    for op in block.ops:
        for comm in op.comms:
            if comm.phase != (FORWARD if phase == AGAIN else phase):
                continue
            seconds = comm_seconds(comm, groups[comm.axis], rates) * (op.again if phase == AGAIN else 1)
            if comm.beside:
                beside = beside + seconds
            else:
                total[comm.axis] = total[comm.axis] + seconds
    overlaps = np.where(groups["tp"].crosses, 0.0, 1 - rates.tp_shown)
    hidden = overlaps * total["tp"] + beside
    return {
        "tp": total["tp"] + beside - shorter(hidden, compute - attention),
        "cp": total["cp"] - shorter((1 - rates.cp_shown) * total["cp"], attention),
        "ep": total["ep"] * rates.ep_shown,
    }


def comm_seconds(comm: Comm, where: Group, rates: Rates) -> N:
    """Seconds of collectives by themselves."""
    if comm.kind == "all_to_all":
        return all_to_all_seconds(where, comm.bytes, comm.count, rates)
    if comm.kind == "p2p":
        return comm.bytes / where.bandwidth + comm.count * where.latency
    return ring_seconds(where, comm.bytes, comm.count, 2 if comm.kind == "all_reduce" else 1)
