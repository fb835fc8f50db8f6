"""Hardware: chips as data with their sources, and what can be learned of this machine.

`detect` reads the system and needs no torch; `probe` measures rates with torch and takes about a second.
"""

from __future__ import annotations

import os
import platform
import time
import tomllib
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from burnish.errors import UserError, nearest

GIB = 1024**3


@dataclass(frozen=True)
class Chip:
    """One device. `memory` in bytes, `flops` in FLOP/s by format, `bandwidth` in byte/s; 0 or empty = not known."""

    name: str
    memory: float
    flops: dict[str, float] = field(default_factory=dict)
    bandwidth: float = 0.0
    source: str = ""
    threads: int = 0

    @property
    def accelerator(self) -> bool:
        """Whether it has memory of its own; a processor is the one whose threads are counted."""
        return not self.threads

    def record(self) -> dict[str, Any]:
        """As plain values for a record."""
        return {key: value for key, value in asdict(self).items() if value}


@cache
def chips() -> dict[str, Chip]:
    """The chips that can be planned for, by name."""
    path = Path(__file__).parent / "tables" / "hardware" / "chips.toml"
    rows = tomllib.loads(path.read_text(encoding="utf-8"))
    return {key: Chip(memory=row.pop("memory_gib") * GIB, **row) for key, row in rows.items()}


def chip(name: str) -> Chip:
    """A chip by name. Raises UserError naming the nearest known one."""
    known = chips()
    if name not in known:
        raise UserError(f"machine.chip {name!r}: unknown; {nearest(name, known)}")
    return known[name]


def detect(threads: int = 0) -> Chip:
    """This machine's processor: its name, cores and memory."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Chip(name=_processor(), memory=_memory(), threads=threads or cores, source="read from this system")


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _memory() -> float:
    """Bytes of memory this process may use: the machine's, or its control group's limit when that is smaller."""
    total = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")) if hasattr(os, "sysconf") else 0.0
    try:
        limit = float(Path("/sys/fs/cgroup/memory.max").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return total
    return min(total, limit) if total else limit


def probe(device: str = "cpu") -> Chip:
    """This device with measured rates: fp32 matrix products (FLOP/s) and copies (bytes read and written a second)."""
    import torch

    size = 1024 if device == "cpu" else 8192
    a, b = (torch.randn(size, size, device=device) for _ in range(2))
    product = 2 * size**3 / _best(lambda: torch.mm(a, b), device)
    source, target = (torch.zeros(32 * 2**20 if device == "cpu" else 256 * 2**20, device=device) for _ in range(2))
    copied = 2 * source.nbytes / _best(lambda: target.copy_(source), device)
    here = detect(torch.get_num_threads())
    if device != "cpu":
        found = torch.cuda.get_device_properties(0)
        here = Chip(name=found.name, memory=float(found.total_memory))
    return Chip(here.name, here.memory, {"fp32": product}, copied, "measured on this machine", here.threads)


def _best(work: Any, device: str, seconds: float = 0.3) -> float:
    """The shortest time of one call over about `seconds`, after one call to warm up."""

    def once() -> float:
        began = time.perf_counter()
        work()
        if device != "cpu":
            import torch

            torch.cuda.synchronize()
        return time.perf_counter() - began

    once()
    times = [once()]
    while sum(times) < seconds:
        times.append(once())
    return min(times)
