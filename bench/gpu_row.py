"""Row: one figure of a check on an accelerator, and how long something takes there."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Row:
    """`what` was measured under `setting`; `beside` is the figure it is compared with, of `other`."""

    section: str
    setting: str
    what: str
    measured: float
    unit: str
    beside: float | None = None
    other: str = ""


def seconds(work: Callable[[], Any], device: str, rounds: int = 5) -> float:
    """The median of `rounds` calls after two that warm up, waiting for the device each time."""
    found = []
    for number in range(rounds + 2):
        wait(device)
        began = time.perf_counter()
        work()
        wait(device)
        if number >= 2:
            found.append(time.perf_counter() - began)
    return median(found)


def wait(device: str) -> None:
    """Until the device has done what it was given."""
    if device == "cuda":
        torch.cuda.synchronize()


def off(found: Tensor, wanted: Tensor) -> float:
    """Root mean square difference, as a share of the wanted values' root mean square."""
    wide = wanted.double()
    return ((found.double() - wide).norm() / wide.norm().clamp(min=1e-300)).item()
