"""Machine probe: what this machine really does, by running small pieces of work on it; needs torch."""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from burnish.errors import UserError
from burnish.hardware import MEASURED, Chip, chip_for, chips, graphics, probe, shortest
from burnish.interconnect import Link

SMALL_OPERATIONS = 300
SENT = 256 * 2**20  # bytes of a copy from one card to another
# Generation of a card by the first digits of its compute capability, the longest match first.
GENERATIONS = {
    "7.5": "turing",
    "8.9": "ada",
    "7": "volta",
    "8": "ampere",
    "9": "hopper",
    "10": "blackwell",
    "12": "blackwell",
}


def measure(device: str) -> tuple[Chip, int, Link | None]:
    """The chip of a device with measured rates, how many of its kind are here, and the link between two of them.

    Rates: matrix products in each format that the device has, copies in its memory, and the time from one small operation
    to the next. Raises UserError for a device that is not here.
    """
    import torch

    if device not in ("cpu", "cuda"):
        raise UserError(f"--device {device}: cpu or cuda")
    if device == "cuda" and not torch.cuda.is_available():
        raise UserError("--device cuda: no CUDA device was found here; use cpu")
    found = probe(device)
    formats = ("bf16",) if device == "cpu" else ("bf16", "fp16")
    flops = {"fp32": found.flops["fp32"], **{form: _products(form, device) for form in formats}}
    if device == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = True
        flops["tf32"] = _products("fp32", device)
        torch.backends.cuda.matmul.allow_tf32 = False
    today = datetime.date.today().isoformat()
    known = _kin(found, device)
    chip = replace(
        found,
        flops=flops,
        launch=_launch(device),
        calibrated=f"{MEASURED} {today}",
        architecture=known.architecture,
        link=known.link,
        network=known.network,
    )
    count = torch.cuda.device_count() if device == "cuda" else 1
    return chip, count, _link(known.link) if count > 1 else None


def _kin(found: Chip, device: str) -> Chip:
    """The known chip that stands for what cannot be measured: the generation, and how nodes are joined."""
    import torch

    if device == "cpu":
        return chips()["cpu"]
    name, memory = next(iter(graphics()), (found.name, found.memory))
    try:
        return chip_for(name, memory / 1e9)
    except UserError:
        capability = ".".join(map(str, torch.cuda.get_device_capability()))
        match = max((key for key in GENERATIONS if capability.startswith(key)), key=len, default="")
        return Chip(name, memory, architecture=GENERATIONS.get(match, ""), link="pcie4", network="ethernet-25")


def _products(form: str, device: str) -> float:
    """FLOP/s of square matrix products in a format."""
    import torch

    size = 1024 if device == "cpu" else 8192
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[form]
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    return 2 * size**3 / shortest(lambda: torch.mm(a, b), device)


def _launch(device: str) -> float:
    """Seconds from one small operation to the next, as a program without graphs or compilation starts them."""
    import torch

    x = torch.zeros(1, device=device)

    def many() -> None:
        for _ in range(SMALL_OPERATIONS):
            x.add_(1.0)

    return shortest(many, device) / SMALL_OPERATIONS


def _link(name: str) -> Link:
    """The link from the first card to the second, by copying."""
    import torch

    source = torch.zeros(SENT // 4, device="cuda:0")
    target = torch.zeros(SENT // 4, device="cuda:1")
    small = torch.zeros(1, device="cuda:0")

    def timed(copy: Callable[[], Any]) -> float:
        best = float("inf")
        for _ in range(10):
            torch.cuda.synchronize(0)
            torch.cuda.synchronize(1)
            began = time.perf_counter()
            copy()
            torch.cuda.synchronize(0)
            torch.cuda.synchronize(1)
            best = min(best, time.perf_counter() - began)
        return best

    rate = SENT / timed(lambda: target.copy_(source))
    return Link(name, rate, timed(lambda: target[:1].copy_(small)), MEASURED)
