"""Attention by tiles and as Triton kernels: errors, memory over the length, what the kernels take of a chip: flash.json.

Errors are root mean squares against float64, of output and gradients, as multiples of plain attention's in the same format.
Triton runs through its interpreter, in a process of its own. Memory is the peak of one forward and backward beside its inputs
(saved, temporary, results), causal, one head of 256, one thread. Kernels are compiled ahead of time for sm_90.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time

import torch

from burnish.models.attention import Kernel, attend
from burnish.ops.flash_attention import kernel_of
from burnish.ops.plain_attention import plain_attention
from burnish.ops.triton_ahead import POINTERS, Compiled, compiled
from burnish.prove.flash_attention import inputs, peak_bytes, slope
from counted import ROOT
from record import record

sys.path.insert(0, str(ROOT / "tests"))
LENGTHS = (1024, 2048, 4096, 8192, 16384)
SHAPE = (1, 1, 256)
FORMATS = (torch.float32, torch.bfloat16, torch.float16)
HEADS = (32, 64, 80, 128, 256)
KERNELS: dict[str, Kernel] = {
    "plain": plain_attention,
    "sdpa": attend,
    "tiled": kernel_of("tiled", (64, 128)) or attend,
}


def tiled_errors() -> dict[str, float]:
    """The worst ratio of each case and format."""
    from flash_cases import CASES, errors, kernel, worst

    return {f"{n} in {d}": worst(errors(kernel("tiled"), case, d)) for n, case in CASES.items() for d in FORMATS}


def triton_errors() -> dict[str, float]:
    """The same of the Triton kernels."""
    from flash_cases import CASES, worst

    wanted = [f"{name} in {str(dtype).removeprefix('torch.')}" for name in CASES for dtype in FORMATS]
    command = [sys.executable, "-W", "ignore", str(ROOT / "tests" / "flash_cases.py"), *wanted]
    ran = subprocess.run(
        command, env=os.environ | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True, check=True
    )
    return {name: worst(found) for name, found in json.loads(ran.stdout).items()}


def memory(longest: int) -> dict[str, dict[int, int]]:
    """Peak bytes by kernel and length."""
    torch.set_num_threads(1)
    lengths = [n for n in LENGTHS if n <= longest]
    return {name: {n: peak_bytes(kernel, inputs(n, SHAPE)) for n in lengths} for name, kernel in KERNELS.items()}


def kernels() -> list[Compiled]:
    """Every kernel for every head size, in bfloat16, and one in float32."""
    found = [compiled(kernel, dim, torch.bfloat16) for dim in HEADS for kernel in POINTERS]
    return found + [compiled(kernel, 64, torch.float32) for kernel in POINTERS]


def measure(longest: int) -> dict[str, float | int | str]:
    """Everything, printed as it comes."""
    values: dict[str, float | int | str] = {}
    for name, errors in (("tiled", tiled_errors), ("triton", triton_errors)):
        began, found = time.perf_counter(), errors()
        worst = max(found, key=lambda case: found[case])
        values |= {f"{name}_error": found[worst], f"{name}_cases": len(found), f"{name}_worst": worst}
        print(f"{name}: {len(found)} cases, worst {found[worst]:.2f}x, {worst}; {time.perf_counter() - began:.0f} s")
    for name, peaks in memory(longest).items():
        values[f"{name}_slope"] = slope(peaks)
        values |= {f"{name}_mib_{n}": size / 2**20 for n, size in peaks.items()}
        print(f"{name}: n^{slope(peaks):.3f}, MiB {', '.join(f'{n}: {b / 2**20:.1f}' for n, b in peaks.items())}")
    chip = kernels()
    for one in chip:
        print(f"sm_90 {one}")
    half, single = chip[: -len(POINTERS)], chip[-len(POINTERS) :]
    values |= {"compiled": len(chip), "most_registers": max(k.registers for k in half)}
    values |= {"spilled_bytes": max(k.stack for k in half), "spilled_bytes_float32": max(k.stack for k in single)}
    return values | {"most_shared_kib": max(k.shared for k in chip) / 1024}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--longest", type=int, default=LENGTHS[-1])
    print(record("flash", measure(parser.parse_args().longest)))
