"""Search: every candidate mapping of a request, dropped by memory before it is timed; ranked, with ties and a Pareto set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from burnish.errors import UserError
from burnish.mapping import Mapping
from burnish.planner import candidates
from burnish.planner.abilities import able, limits
from burnish.planner.candidates import Row
from burnish.planner.commands import UNSAID, can_say
from burnish.planner.legal import Degrees, fixed_degrees
from burnish.planner.pricing import Priced, capacity, peak_of, price_of
from burnish.planner.request import Request, fixed_words

# Mappings whose times differ by less than this share are told apart by no prediction of this model.
TIE = 0.01


@dataclass(frozen=True)
class Found:
    """What fits, fastest first, and how much was looked at. Where nothing fits, `nearest` is what is least over."""

    mapping: Mapping  # arrays
    price: Priced
    order: np.ndarray  # indices into the arrays, fastest first; ties by simplicity
    tied: int  # how many at the head of `order` are within TIE of the fastest
    considered: int
    nearest: Mapping | None = None

    @property
    def count(self) -> int:
        """How many mappings fit."""
        return len(self.order)


def search(asked: Request) -> Found:
    """All candidates of a request. Raises UserError where no mapping has what is fixed."""
    lean = said(asked, candidates.lean(asked, fixed_degrees(asked)))
    if not lean:
        raise UserError(nothing_left(asked))
    spare = room(asked, lean)
    rows = said(asked, candidates.full(asked, [row for row, left in zip(lean, spare, strict=True) if left >= 0]))
    fits = room(asked, rows) >= 0
    mapping = candidates.mapping_of(asked, [row for row, fit in zip(rows, fits, strict=True) if fit])
    price = price_of(asked, mapping)
    order, tied = ranked(mapping, price.seconds)
    nearest = None if len(order) else candidates.one(candidates.mapping_of(asked, lean), int(np.argmax(spare)))
    return Found(mapping, price, order, tied, len(lean) + len(rows), nearest)


def said(asked: Request, rows: list[Row]) -> list[Row]:
    """The candidates that the stack can run, and that the command asked for, if any, can express."""
    if not rows or not (asked.dialect or limits(asked.profile)):
        return rows
    mapping = candidates.mapping_of(asked, rows)
    kept = can_say(asked.dialect, mapping) & able(asked.profile, mapping)
    return [row for row, keep in zip(rows, kept, strict=True) if keep]


def nothing_left(asked: Request) -> str:
    """Why legal degrees have no legal settings."""
    fixed = fixed_words(asked.fix) or "nothing fixed"
    lean = candidates.lean(asked, fixed_degrees(asked))
    if lean and limits(asked.profile) and not able(asked.profile, candidates.mapping_of(asked, lean)).any():
        many = f"{asked.cluster.gpus:,} {asked.device}s, {asked.batch:,} sequences and {fixed}"
        return f"--stack {asked.profile.name}: it {limits(asked.profile)}; no such mapping has {many}; or --gpus-free"
    if asked.dialect and lean:
        return f"--as {asked.dialect}: its command can express no mapping with {fixed}: {UNSAID[asked.dialect]}"
    if asked.must_shrink and not any(d.dp * d.cp > 1 for d in fixed_degrees(asked)):
        return (
            f"--must-shrink {','.join(asked.must_shrink)}: with {fixed} no data-parallel ranks are left to split over"
        )
    return f"--fix: no mapping has {fixed} together: pp must divide the micro batches where vpp is above 1"


def room(asked: Request, rows: Sequence[Row]) -> np.ndarray:
    """Bytes that each candidate leaves free on its fullest stage; negative where it does not fit."""
    return capacity(asked) - peak_of(asked, candidates.mapping_of(asked, rows))


def ranked(mapping: Mapping, seconds: np.ndarray) -> tuple[np.ndarray, int]:
    """Candidates by time; those that tie with the fastest come first, the simplest of them foremost, and are counted."""
    if not len(seconds):
        return np.zeros(0, dtype=np.int64), 0
    tied = seconds <= seconds.min() * (1 + TIE)
    keys = [np.where(tied, part, 0) for part in complexity(mapping)]
    return np.lexsort((seconds, *reversed(keys), ~tied)), int(tied.sum())


def complexity(mapping: Mapping) -> list[np.ndarray]:
    """What makes a mapping less simple, weightiest first: axes in use, ZeRO stage, recompute, chunks, copies of shards."""
    axes = sum((np.asarray(getattr(mapping, axis)) > 1).astype(int) for axis in ("tp", "pp", "cp", "ep", "etp"))
    return [
        np.asarray(axes),
        *(np.asarray(getattr(mapping, name)) for name in ("zero", "recompute", "offload")),
        np.asarray(mapping.vpp) > 1,
        np.asarray(mapping.shard) > 0,
    ]


def by_degrees(found: Found) -> list[int]:
    """The best candidate of each set of degrees, best first."""
    key = np.zeros(found.count, dtype=np.int64)
    for axis in Degrees._fields:
        values = getattr(found.mapping, axis)[found.order]
        key = key * (int(values.max(initial=0)) + 1) + values
    _, first = np.unique(key, return_index=True)
    return [int(index) for index in found.order[np.sort(first)]]


def pareto(found: Found) -> list[int]:
    """Candidates that no other beats in time, memory and number of GPUs at once, fastest first."""
    price, gpus = found.price, np.asarray(found.mapping.gpus)
    order = np.lexsort((gpus, price.peak, price.seconds))
    peak, gpus, kept = price.peak[order], gpus[order], np.zeros(len(order), dtype=bool)
    for count in np.unique(gpus):
        least = np.minimum.accumulate(np.where(gpus <= count, peak, np.inf))
        kept |= (gpus == count) & (peak < np.append(np.inf, least[:-1]))
    return [int(index) for index in order[kept]]
