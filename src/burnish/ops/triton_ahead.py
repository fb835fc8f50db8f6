"""Kernels compiled ahead of time for a chip that need not be here, and what the assembler says they take.

A cubin needs no GPU: Triton's wheel brings the assembler. Registers and stack are read from the cubin itself; a stack is
what did not fit the registers.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from burnish.ops import flash_triton_kernels as kernels
from burnish.ops.flash_tiles import Tiles
from burnish.ops.flash_triton import sizes_of

FORMATS = {torch.float16: "*fp16", torch.bfloat16: "*bf16", torch.float32: "*fp32"}
WIDE = "*fp32"
# Kernel -> how many of what it is given, and of what it makes, are in the tensors' own format; the rest is float32.
POINTERS = {"forward_kernel": ((3, 0), (1, 1)), "queries_kernel": ((5, 1), (1, 1)), "keys_kernel": ((4, 2), (2, 0))}


@dataclass(frozen=True)
class Compiled:
    """What a kernel takes of a chip: 32-bit registers and stack bytes a thread, shared memory a program, code bytes."""

    kernel: str
    dim: int
    registers: int
    stack: int
    shared: int
    code: int


def compiled(kernel: str, dim: int, dtype: torch.dtype, capability: int = 90, before: int = -1) -> Compiled:
    """Compile one flash kernel for a CUDA chip of compute capability `capability`, causal, four query heads a key head."""
    q, k = (torch.empty(1, heads, dim, dtype=dtype) for heads in (32, 8))
    sizes, warps = sizes_of(q, k, Tiles((1,), (1,), before))
    own = FORMATS[dtype]
    given, made = ((own,) * narrow + (WIDE,) * wide for narrow, wide in POINTERS[kernel])
    signature = {"given": given, "made": made, "table": "*i32", "sizes": "constexpr"}
    source = ASTSource(
        getattr(kernels, kernel), signature, {"sizes": tuple(sizes._replace(widened=False))}, _aligned(given, made)
    )
    found: Any = triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": warps})
    registers, stack = usage(found.asm["cubin"])
    return Compiled(kernel, dim, registers, stack, int(found.metadata.shared), len(found.asm["cubin"]))


def _aligned(*pointers: tuple[str, ...]) -> dict[tuple[int, ...], list[list[Any]]]:
    """What a launch finds out by itself: torch's tensors begin at multiples of 16 bytes."""
    places = [(argument, part) for argument, parts in enumerate(pointers) for part in range(len(parts))]
    return {place: [["tt.divisibility", 16]] for place in (*places, (len(pointers),))}


def usage(cubin: bytes) -> tuple[int, int]:
    """Registers and stack bytes a thread of the one kernel in a cubin."""
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        ran = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True)
    (found,) = re.findall(r"REG:(\d+) STACK:(\d+)", ran.stdout)
    return int(found[0]), int(found[1])
