"""The attention kernels beside torch's flash attention on an accelerator: error, time and memory over the length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from burnish.measure import peak_memory, reset_peak
from burnish.models.attention import Kernel, Pattern, attend
from burnish.ops.flash_attention import kernel_of
from burnish.ops.plain_attention import plain_attention
from gpu_row import Row, off, seconds

LENGTHS = (1024, 2048, 4096, 8192, 16384)
DIMS = (64, 128, 256)
HEADS, KV_HEADS = 16, 4
EXACT = 2048  # longest length whose error is measured: the float64 reference stores its scores
WINDOW = 1024


def inputs(length: int, dim: int, heads: tuple[int, int], device: str) -> list[Tensor]:
    draw = torch.Generator().manual_seed(length + dim)
    counts = (heads[0], heads[1], heads[1], heads[0])
    return [torch.randn(1, length, n, dim, generator=draw).to(device, torch.bfloat16) for n in counts]


def run(kernel: Kernel, given: list[Tensor], pattern: Pattern) -> list[Tensor]:
    """Output and gradients."""
    q, k, v = (x.detach().requires_grad_() for x in given[:3])
    out = kernel(q, k, v, pattern)
    return [out.detach(), *torch.autograd.grad(out, (q, k, v), given[3])]


def check(
    device: str,
    name: str = "triton",
    lengths: Sequence[int] = LENGTHS,
    dims: Sequence[int] = DIMS,
    heads: tuple[int, int] = (HEADS, KV_HEADS),
) -> Iterator[Row]:
    """Kernel `name` beside torch's own, causal and under a window."""
    kernel = kernel_of(name, (64, 128))
    assert kernel is not None
    for dim in dims:
        for length in lengths:
            given = inputs(length, dim, heads, device)
            for layout, pattern in (("causal", Pattern()), ("window", Pattern(window=min(WINDOW, length // 2)))):
                setting = f"{name}, {layout}, {length} tokens, {heads[0]}/{heads[1]} heads of {dim}"
                yield from beside(setting, kernel, given, pattern, device, length <= EXACT)
    wide = [x.float() for x in inputs(lengths[0], dims[0], heads, device)]
    setting = f"{name}, causal, {lengths[0]} tokens, {heads[0]}/{heads[1]} heads of {dims[0]}, float32"
    yield from beside(setting, kernel, wide, Pattern(), device, True)


def beside(
    setting: str, kernel: Kernel, given: list[Tensor], pattern: Pattern, device: str, exact: bool
) -> Iterator[Row]:
    """One setting."""
    with torch.no_grad():
        forward = [1e3 * seconds(lambda f=f: f(*given[:3], pattern), device) for f in (kernel, attend)]
    both = [1e3 * seconds(lambda f=f: run(f, given, pattern), device) for f in (kernel, attend)]
    peaks = []
    for function in (kernel, attend):
        held = reset_peak(device)
        run(function, given, pattern)
        peaks.append((peak_memory(device) - held) / 2**20)
    yield Row("attention", setting, "forward", forward[0], "ms", forward[1], "sdpa")
    yield Row("attention", setting, "forward and backward", both[0], "ms", both[1], "sdpa")
    yield Row("attention", setting, "peak memory", peaks[0], "MiB", peaks[1], "sdpa")
    if exact:
        wanted = run(plain_attention, [x.double() for x in given], pattern)
        errors = [
            max(off(a, b) for a, b in zip(run(function, given, pattern), wanted, strict=True))
            for function in (kernel, attend)
        ]
        yield Row("attention", setting, "error against float64", errors[0], "", errors[1], "sdpa")
