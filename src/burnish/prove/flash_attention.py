"""Claim: flash attention is exact and keeps nothing of queries x keys; its gain is memory, not fewer FLOPs."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from burnish.measure import aten  # whose counter knows torch's CPU kernel
from burnish.models.attention import Kernel, Pattern, attend
from burnish.ops.flash_attention import kernel_of
from burnish.ops.plain_attention import plain_attention
from burnish.prove.claim import Verdict
from burnish.techniques.attention import FORWARD_PRODUCTS, PRODUCTS
from burnish.units import show

HEADS, KV_HEADS, DIM = 2, 1, 64
LENGTHS = (1024, 2048, 4096)  # doubled, and torch's kernel takes the same tiles for all of them
KERNELS: dict[str, Kernel] = {
    "plain": plain_attention,
    "sdpa": attend,
    "tiled": kernel_of("tiled", (32, 64)) or attend,
}
SLOPES = {"plain": 2.0, "sdpa": 1.0, "tiled": 1.0}
NEAR, EXACT = 0.1, 2.0  # of a slope; times the error of plain attention


@dataclass(frozen=True)
class Seen:
    """One kernel: the peak of a forward and backward by length, FLOPs of the longest, errors against float64."""

    peaks: dict[int, int]
    flops: int
    error: float

    @property
    def slope(self) -> float:
        """How the peak grows with the length, as a power of it; what is there whatever the length, as a tile is, counts not."""
        sizes = list(self.peaks.items())
        return slope({n: size - before for (_, before), (n, size) in pairwise(sizes)})


def inputs(length: int, shape: tuple[int, int, int] = (HEADS, KV_HEADS, DIM)) -> list[Tensor]:
    """q, k, v of one row, and the gradient of the output; `shape`: query heads, key heads, their size."""
    draw = torch.Generator().manual_seed(length)
    heads = (shape[0], shape[1], shape[1], shape[0])
    return [torch.randn(1, length, count, shape[2], generator=draw) for count in heads]


def run(kernel: Kernel, given: list[Tensor]) -> list[Tensor]:
    """Causal attention forward and backward: output, gradients of q, k, v."""
    q, k, v = (x.detach().requires_grad_() for x in given[:3])
    out = kernel(q, k, v, Pattern())
    return [out.detach(), *torch.autograd.grad(out, (q, k, v), given[3])]


def peak_bytes(kernel: Kernel, given: list[Tensor]) -> int:
    """Most bytes that stand at once beside the inputs, in one forward and backward: saved, temporary and results alike, as
    torch's CPU allocator counts them."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler says when it starts and stops
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        results = run(kernel, given)
    assert seen.profiler is not None
    assert seen.profiler.kineto_results is not None
    events = [event for event in seen.profiler.kineto_results.events() if event.name() == "[memory]"]
    standing = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        standing += event.nbytes()
        most = max(most, standing)
    del results
    return most


def slope(peaks: dict[int, int]) -> float:
    """The slope of log bytes over log length, by least squares."""
    at = [math.log(n) for n in peaks]
    size = [math.log(b) for b in peaks.values()]
    middle, height = sum(at) / len(at), sum(size) / len(size)
    over = sum((a - middle) * (s - height) for a, s in zip(at, size, strict=True))
    return over / sum((a - middle) ** 2 for a in at)


def flops(kernel: Kernel, length: int) -> int:
    """FLOPs of a forward and backward, all pairs counted."""
    assert aten._scaled_dot_product_flash_attention_for_cpu in flop_registry
    with FlopCounterMode(display=False) as counter:
        run(kernel, inputs(length))
    return int(counter.get_total_flops())


def errors(length: int) -> dict[str, list[float]]:
    """Root mean square difference of output and gradients from float64, of each kernel in float32."""
    wanted = run(plain_attention, [x.double() for x in inputs(length)])
    found = {name: run(kernel, inputs(length)) for name, kernel in KERNELS.items()}
    off = partial(zip, wanted, strict=True)
    return {name: [(a - b.double()).square().mean().sqrt().item() for a, b in off(r)] for name, r in found.items()}


def observed(lengths: tuple[int, ...] = LENGTHS) -> dict[str, Seen]:
    """Every kernel measured; its error as a multiple of plain attention's, the worst of output and gradients."""
    off = errors(lengths[0])
    worst = {n: max(a / b for a, b in zip(each, off["plain"], strict=True)) for n, each in off.items()}
    return {
        name: Seen({n: peak_bytes(kernel, inputs(n)) for n in lengths}, flops(kernel, lengths[-1]), worst[name])
        for name, kernel in KERNELS.items()
    }


def measure() -> Verdict:
    """Run every kernel over three lengths."""
    seen = observed()
    longest, pairs = LENGTHS[-1], 2 * HEADS * DIM * LENGTHS[-1] ** 2
    expected = {name: pairs * (FORWARD_PRODUCTS + PRODUCTS[name]) for name in KERNELS}
    sloped = all(abs(seen[name].slope - wanted) <= NEAR for name, wanted in SLOPES.items())
    counted = all(seen[name].flops == count for name, count in expected.items())
    exact = all(one.error <= EXACT for one in seen.values())
    ratio = seen["sdpa"].flops / seen["plain"].flops
    return Verdict(
        claim="flash-attention",
        statement="Flash attention computes exact attention without the n x n matrix in memory: fewer bytes moved, not fewer "
        "FLOPs, and no approximation. Memory grows with n, not with its square.",
        varied=f"kernel: {', '.join(KERNELS)}; length: {', '.join(map(str, LENGTHS))}",
        held=f"causal, {HEADS} query heads, {KV_HEADS} key head of {DIM}, float32, inputs, forward and backward",
        expected=f"peak ~ n^{SLOPES['sdpa']:g} +- {NEAR}, plain ~ n^{SLOPES['plain']:g} +- {NEAR}; FLOPs "
        f"{FORWARD_PRODUCTS + PRODUCTS['sdpa']}/{FORWARD_PRODUCTS + PRODUCTS['plain']} of plain, for scores are made again; "
        f"error against float64 <= {EXACT:g}x plain attention's",
        measured="; ".join(
            f"{name}: {show(one.peaks[longest], 'bytes')} at {longest}, ~ n^{one.slope:.2f}, error {one.error:.2f}x"
            for name, one in seen.items()
        )
        + f"; FLOPs {ratio:.3f}x of plain, {'as' if counted else 'not as'} predicted",
        holds=sloped and counted and exact,
        why="Softmax of a row needs its maximum and its sum, and both can be brought up to date as tiles of scores come by: "
        "what was summed is rescaled by exp(old maximum - new). Backward makes the tiles again from the sum that was kept.",
        source="Milakov & Gimelshein 2018, arXiv 1805.02867; Dao et al. 2022, arXiv 2205.14135; Dao 2023, arXiv 2307.08691",
        code="src/burnish/techniques/attention.py, src/burnish/ops/flash_tiled.py, src/burnish/ops/flash_triton_kernels.py",
    )
