"""Hardware: chips as data with their sources, and what can be learned of this machine.

`detect` reads the system and needs no torch; `probe` measures rates with torch and takes about a second.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import time
import tomllib
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from burnish.errors import UserError, nearest

GIB = 1024**3
MEASURED = "measured on this machine"
MEMORY_OFF = 0.2  # share by which a stated memory may differ from a chip's before another chip is meant
NODE = 8  # chips of a node where a table does not say


@dataclass(frozen=True)
class Chip:
    """One device. `memory` in bytes, `flops` in FLOP/s by format, `bandwidth` in byte/s; 0 or empty = not known."""

    name: str
    memory: float
    flops: dict[str, float] = field(default_factory=dict)
    bandwidth: float = 0.0
    source: str = ""
    threads: int = 0
    key: str = ""  # its name in the table of chips
    # generation: "volta", "turing", "ampere", "ada", "hopper", "blackwell", "blackwell-ultra", "cdna3", "cpu"
    architecture: str = ""
    link: str = ""  # what joins the chips of a domain, and the domains
    network: str = ""
    per_node: int = 0
    domain: int = 0  # chips that reach each other over `link`; 0 = those of a node
    launch: float = 0.0  # seconds from one small operation to the next
    calibrated: str = ""  # what its rates were held against; empty = data sheet only
    also: tuple[str, ...] = ()

    @property
    def accelerator(self) -> bool:
        """Whether it has memory of its own; a processor is the one whose threads are counted."""
        return not self.threads

    @property
    def measured(self) -> bool:
        """Whether its rates were measured on it, so that they are no peaks of which a program gets a share."""
        return self.calibrated.startswith(MEASURED)

    def record(self) -> dict[str, Any]:
        """As plain values for a record."""
        return {key: value for key, value in asdict(self).items() if value}


@cache
def chips() -> dict[str, Chip]:
    """The chips that can be planned for, by name."""
    path = Path(__file__).parent / "tables" / "hardware" / "chips.toml"
    rows = tomllib.loads(path.read_text(encoding="utf-8"))
    return {key: chip_of(row, key) for key, row in rows.items()}


def generations() -> list[str]:
    """The chip generations that rates are known of."""
    return sorted({chip.architecture for chip in chips().values()})


def chip_of(row: dict[str, Any], key: str = "") -> Chip:
    """A chip from a table of a TOML file: the fields of `Chip`, memory in GiB as `memory_gib`."""
    values = {"per_node": NODE, **row, "key": key, "also": tuple(row.get("also", ()))}
    return Chip(memory=values.pop("memory_gib") * GIB, **values)


def chip(name: str) -> Chip:
    """A chip by name. Raises UserError naming the nearest known one."""
    known = chips()
    if name not in known:
        raise UserError(f"machine.chip {name!r}: unknown; {nearest(name, known)}")
    return known[name]


def _stem(name: str) -> tuple[str, float | None]:
    """A chip's name without maker, punctuation and memory, and the memory in GB it states."""
    lowered = re.sub(r"\(.*?\)", " ", name.lower())
    memory = re.search(r"(\d+)\s*gb\b", lowered)
    words = re.sub(r"\d+\s*gb\b|\bhbm\w*|\b(nvidia|amd|tesla|geforce|instinct)\b", " ", lowered)
    return re.sub(r"[^a-z0-9]", "", words), float(memory[1]) if memory else None


@cache
def _stems() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for key, one in chips().items():
        for stem in dict.fromkeys(_stem(name)[0] for name in (key, one.name, *one.also)):
            found.setdefault(stem, []).append(key)
    return found


def chip_for(gpu: str, memory_gb: float | None = None) -> Chip:
    """The chip that a name in use for it means, of several sizes the one nearest to `memory_gb` (10^9 byte).

    Raises UserError naming near chips, or the sizes there are.
    """
    text = gpu.strip().lower()
    if text in chips() and memory_gb is None:
        return chips()[text]
    stem, stated = _stem(text)
    keys = _stems().get(stem)
    if not text or not keys:
        raise UserError(f"chip {gpu!r}: {'unknown' if text else 'no name'}; {nearest(text, chips())}")
    wanted = memory_gb or stated
    if wanted is None:
        return chips()[keys[0]]
    sizes = {key: _stem(chips()[key].name)[1] or chips()[key].memory / 1e9 for key in keys}
    best = min(sizes, key=lambda key: abs(sizes[key] / wanted - 1))
    if abs(sizes[best] / wanted - 1) > MEMORY_OFF:
        known = ", ".join(f"{key} ({size:.0f} GB)" for key, size in sizes.items())
        raise UserError(f"chip {gpu!r}: none with {wanted:g} GB; known: {known}")
    return chips()[best]


def graphics() -> list[tuple[str, float]]:
    """This machine's graphics cards: name and bytes of memory of each, as the driver lists them; none without a driver."""
    if (tool := shutil.which("nvidia-smi")) is None:
        return []
    asked = [tool, "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"]
    try:
        listed = subprocess.run(asked, capture_output=True, text=True, timeout=20, check=True).stdout
        rows = [line.rpartition(",") for line in listed.splitlines() if line.strip()]
        return [(name.strip(), float(size) * 2**20) for name, _, size in rows]
    except (OSError, subprocess.SubprocessError, ValueError):
        return []


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
    product = 2 * size**3 / shortest(lambda: torch.mm(a, b), device)
    source, target = (torch.zeros(32 * 2**20 if device == "cpu" else 256 * 2**20, device=device) for _ in range(2))
    copied = 2 * source.nbytes / shortest(lambda: target.copy_(source), device)
    here = detect(torch.get_num_threads())
    if device != "cpu":
        found = torch.cuda.get_device_properties(0)
        here = Chip(name=found.name, memory=float(found.total_memory))
    return Chip(here.name, here.memory, {"fp32": product}, copied, MEASURED, here.threads)


def shortest(work: Any, device: str, seconds: float = 0.3) -> float:
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
