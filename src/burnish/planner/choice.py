"""Choice: one mapping with what it costs and why it is or is not taken, as a record that JSON and pages are made from."""

from __future__ import annotations

from collections.abc import Mapping as Table
from dataclasses import dataclass, field
from typing import Any

from burnish.hardware import GIB
from burnish.mapping import Mapping
from burnish.parameters import causal_flops
from burnish.planner.candidates import AXES, one, several
from burnish.planner.pricing import Priced, capacity, price_of
from burnish.planner.request import Request, named_value
from burnish.rates import FORMAT


@dataclass(frozen=True)
class Choice:
    """A mapping of numbers, predicted. Times in seconds a step, memory in bytes on one GPU of each stage."""

    mapping: Mapping
    fits: bool
    seconds: float
    memory: float  # of the fullest stage
    stages: Table[int, Table[str, float]]  # stage -> kind of bytes -> bytes
    owner: int  # the fullest stage
    parts: Table[str, float]  # cause -> seconds
    cross_node_bytes: float  # sent over the network by all ranks in a step
    tokens_per_second: float
    mfu: float | None
    device: str = "GPU"
    tie: bool = False
    change: str = ""
    reason: str = ""
    notes: tuple[str, ...] = field(default=())

    @property
    def words(self) -> str:
        """The mapping in one phrase."""
        return in_words(self.mapping, self.device)

    def record(self) -> dict[str, Any]:
        """As plain values: GiB for memory, names for numbered settings."""
        return {
            "mapping": named(self.mapping),
            "words": self.words,
            "gpus": int(self.mapping.gpus),
            "fits": self.fits,
            "seconds": _round(self.seconds),
            "tokens_per_second": _round(self.tokens_per_second),
            "mfu": self.mfu and _round(self.mfu),
            "memory_gib": _round(self.memory / GIB),
            "cross_node_bytes_per_step": int(self.cross_node_bytes),
            "reason": self.reason,
            "change": self.change,
            "tie": self.tie,
            "parts": {cause: _round(seconds) for cause, seconds in self.parts.items()},
            "fullest_stage": self.owner,
            "stages": [
                {"stage": stage, "memory_gib": {kind: _round(size / GIB) for kind, size in kinds.items()}}
                for stage, kinds in self.stages.items()
            ],
        }


def _round(value: float) -> float:
    return float(f"{value:.6g}")


def named(mapping: Mapping) -> dict[str, int | str]:
    """A mapping of numbers with names where they stand for something."""
    values = {axis: int(getattr(mapping, axis)) for axis in AXES}
    return {axis: named_value(axis, value) for axis, value in values.items()}


def in_words(mapping: Mapping, device: str = "GPU") -> str:
    """What a mapping uses, the rest left out: `tp 8 x dp 8, ZeRO 1, micro batch 1, recompute full`."""
    m = named(mapping)
    degrees = [f"{axis} {m[axis]}" for axis in ("tp", "pp", "dp", "cp") if m[axis] != 1] or [f"1 {device}"]
    words = [" x ".join(degrees)]
    words += [f"{axis} {m[axis]}" for axis in ("ep", "etp", "vpp") if m[axis] != 1]
    words += [f"ZeRO {m['zero']}" + (f" in groups of {m['shard']}" if m["shard"] else "")] if m["zero"] else []
    words += [f"micro batch {m['micro_batch']}"]
    words += [f"{axis} {m[axis]}" for axis in ("recompute", "offload") if m[axis] != "none"]
    words += [str(m["schedule"])] if m["schedule"] != "1f1b" and m["pp"] != 1 else []
    return ", ".join(words)


def choices(asked: Request, mappings: list[Mapping]) -> list[Choice]:
    """Mappings of numbers, priced together."""
    if not mappings:
        return []
    together = several(mappings)
    price = price_of(asked, together)
    return [choice(asked, together, price, index) for index in range(len(mappings))]


def choice(asked: Request, mapping: Mapping, price: Priced, index: int) -> Choice:
    """One of many priced candidates."""
    this = one(mapping, index)
    last = int(this.pp) - 1
    rows = {0: 0, min(1, last): 1, last: 2}
    kinds = {stage: {k: float(v[row, index]) for k, v in price.memory.items()} for stage, row in rows.items()}
    owner = max(kinds, key=lambda stage: sum(kinds[stage].values()))
    seconds, tokens = float(price.seconds[index]), asked.batch * asked.seq
    return Choice(
        mapping=this,
        fits=float(price.peak[index]) <= capacity(asked),
        seconds=seconds,
        memory=float(price.peak[index]),
        stages=kinds,
        owner=owner,
        parts={cause: float(v[index]) for cause, v in price.parts.items()},
        cross_node_bytes=float(price.cross_node_bytes[index]),
        tokens_per_second=tokens / seconds,
        mfu=utilization(asked, seconds, int(this.gpus)),
        device=asked.device,
    )


def utilization(asked: Request, seconds: float, gpus: int) -> float | None:
    """Model FLOPs utilization (Chowdhery et al. 2022, arXiv 2204.02311, appendix B), attention counted under its causal
    mask; None where part of the weights is frozen. The peak is that of the precision of products."""
    if asked.trained != "all":
        return None
    peak = asked.cluster.chip.flops[FORMAT.get(asked.precision, asked.precision)]
    flops = asked.batch * asked.seq * float(causal_flops(asked.model, asked.seq))
    return flops / (seconds * gpus * peak)
