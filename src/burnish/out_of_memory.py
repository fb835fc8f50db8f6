"""Out of memory: what to say when an allocation fails: which request, what was there, and what would help.

Advice depends on the state: more room is not promised by a setting that is on already, and defragmenting is not
proposed where little memory lies idle.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from burnish.units import show

IDLE = 0.1  # share of a device's memory, reserved and not allocated, from which fragmentation is the likelier cause
UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
ALLOCATORS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")


@dataclass(frozen=True)
class Memory:
    """Bytes on one device when a request failed; `requested` 0 where the message does not say."""

    requested: float
    allocated: float
    reserved: float
    capacity: float
    expandable: bool


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that an allocation failed, on an accelerator or on the CPU."""
    return type(error).__name__ == "OutOfMemoryError" or "can't allocate memory" in str(error)


def requested(message: str) -> float:
    """Bytes that the failed request was for, read from the library's message; 0 if it does not say."""
    found = re.search(r"(?:ried to allocate) (\d+(?:\.\d+)?) (bytes|[KMG]iB)", message)
    return float(found[1]) * UNITS[found[2]] if found else 0.0


def expandable(environment: dict[str, str] | None = None) -> bool:
    """Whether segments of the accelerator's allocator may grow already."""
    values = os.environ if environment is None else environment
    return any("expandable_segments:true" in values.get(name, "").lower() for name in ALLOCATORS)


def advice(memory: Memory, checkpointing: str, micro_batch: int) -> list[str]:
    """What would help, most likely first. Raises nothing: there is always something to say."""
    said = []
    idle = memory.reserved - memory.allocated
    fits_idle = memory.requested and memory.requested <= idle
    if memory.capacity and idle > IDLE * memory.capacity and (fits_idle or not memory.requested):
        if memory.expandable:
            said.append("pieces of free memory are too small although expandable segments are on: use one row length")
        else:
            said.append(f"{show(idle, 'bytes')} lie free in pieces: set {ALLOCATORS[0]}=expandable_segments:True")
    if micro_batch > 1:
        said.append(f"train.micro_batch={micro_batch // 2} with the same train.global_batch")
    if checkpointing in ("none", "selective"):
        said.append("memory.checkpointing=full")
    return said or ["a higher parallel.zero on more ranks, a shorter data.seq, or a smaller model"]


def explain(memory: Memory, largest: str, checkpointing: str, micro_batch: int) -> str:
    """One line: the request, the state, the largest part of the plan, and what would help."""
    asked = f"a request for {show(memory.requested, 'bytes')} failed" if memory.requested else "an allocation failed"
    held = f"{show(memory.allocated, 'bytes')} allocated of " if memory.allocated else "the device has "
    there = f" ({held}{show(memory.capacity, 'bytes')})" if memory.capacity else ""
    helps = "; ".join(advice(memory, checkpointing, micro_batch))
    return f"out of memory: {asked}{there}; most of the plan is {largest}; try: {helps}"
