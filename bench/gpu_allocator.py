"""Allocator backends under batches of varying length: what is reserved for what is used, and how long it takes.

Each backend is a process of its own, for it is chosen before the first allocation. As a program it runs the trace once.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from gpu_row import Row, wait

BACKENDS = {
    "native": "",
    "expandable segments": "expandable_segments:True",
    "cudaMallocAsync": "backend:cudaMallocAsync",
}
BATCHES, LONGEST, HIDDEN, LAYERS = 300, 8192, 2048, 8


def lengths(batches: int, longest: int) -> list[int]:
    """Tokens of each batch: most short, a few long, as texts are."""
    draw = random.Random(0)
    return [min(longest, max(16, int(longest / 6 * draw.lognormvariate(0, 0.8)))) for _ in range(batches)]


def trace(device: str, batches: int = BATCHES, longest: int = LONGEST, hidden: int = HIDDEN) -> dict[str, float]:
    """What a forward and backward of a network allocates, batch by batch: activations of the batch's length are kept layer by
    layer and freed in reverse, with wider ones in between."""
    began = time.perf_counter()
    for length in lengths(batches, longest):
        kept: list[Any] = []
        for _ in range(LAYERS):
            kept.append(torch.empty(length, hidden, dtype=torch.bfloat16, device=device).fill_(1))
            wide = torch.empty(length, 4 * hidden, dtype=torch.bfloat16, device=device).fill_(1)
            kept.append(wide[:, :hidden] + kept[-1])
            del wide
        while kept:
            kept.pop()
    wait(device)
    found = {"seconds": time.perf_counter() - began, "reserved": 0.0, "allocated": 0.0, "retries": 0.0}
    if device == "cuda":
        seen = torch.cuda.memory_stats()
        found["reserved"] = seen.get("reserved_bytes.all.peak", 0) / 2**20
        found["allocated"] = seen.get("allocated_bytes.all.peak", 0) / 2**20
        found["retries"] = float(seen.get("num_alloc_retries", 0))
    return found


def child(setting: str, device: str, batches: int, longest: int) -> dict[str, float]:
    """The trace in a process with an allocator setting."""
    environment = os.environ | {"PYTORCH_ALLOC_CONF": setting, "PYTORCH_CUDA_ALLOC_CONF": setting}
    command = [sys.executable, str(Path(__file__)), device, str(batches), str(longest)]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(ran.stdout.splitlines()[-1])
    return found


def check(device: str, batches: int = BATCHES, longest: int = LONGEST) -> Iterator[Row]:
    """Every backend; those after the first beside it."""
    first: dict[str, float] = {}
    for name, setting in BACKENDS.items():
        found = child(setting, device, batches, longest)
        first = first or found
        where = f"{batches} batches of up to {longest} tokens, {name}"
        yield Row("allocator", where, "peak reserved", found["reserved"], "MiB", found["allocated"], "allocated")
        yield Row("allocator", where, "time", found["seconds"], "s", first["seconds"], "native")
        yield Row("allocator", where, "retries", found["retries"], "")


if __name__ == "__main__":
    print(json.dumps(trace(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))
