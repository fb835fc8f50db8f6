"""Costs of a model: bytes and matrices of its weights, and the time of a forward beside another model's."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from torch import nn

from burnish.weight_format import MATRICES

REPEATS = 5


def held_bytes(model: nn.Module) -> int:
    """Bytes of all parameters and buffers; what is shared counts once."""
    seen = {}
    for tensor in (*model.parameters(), *model.buffers()):
        storage = tensor.untyped_storage()
        seen[storage.data_ptr(), storage.nbytes()] = storage.nbytes()
    return sum(seen.values())


def integer_matrices(model: nn.Module) -> tuple[int, int]:
    """(matrices of the layers that are integers, all that could be); those of a layer's experts count as one."""
    own = [module for name, module in model.named_modules() if name.split(".", 2)[-1] in MATRICES]
    return sum(hasattr(module, "dequantized") for module in own), len(own)


@torch.no_grad()
def medians(one: Callable[[], object], other: Callable[[], object], repeats: int = REPEATS) -> tuple[float, float]:
    """Median seconds of two calls that take turns, after one of each that does not count."""
    one(), other()
    seconds: tuple[list[float], list[float]] = ([], [])
    for _ in range(repeats):
        for call, kept in zip((one, other), seconds, strict=True):
            began = time.perf_counter()
            call()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            kept.append(time.perf_counter() - began)
    return statistics.median(seconds[0]), statistics.median(seconds[1])
