"""Neighbours: mappings that differ from one in a single axis; degrees come with the settings that suit them best."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import log2

import numpy as np

from burnish.mapping import Mapping
from burnish.planner.abilities import able
from burnish.planner.candidates import (
    chunks,
    full,
    lean,
    mapping_of,
    micro_batches,
    one,
    recompute,
    several,
    shards,
    stages,
)
from burnish.planner.commands import can_say
from burnish.planner.legal import Degrees, degrees, with_fixed
from burnish.planner.pricing import capacity, price_of
from burnish.planner.request import Request
from burnish.planner.search import TIE, said

SPLITS = ("tp", "pp", "cp", "ep")  # data parallel takes what they leave
SETTINGS = ("zero", "micro_batch", "recompute", "vpp", "shard")
DP_WEIGHT = 0.01  # a change of dp counts less than one of any other axis


def neighbours(asked: Request, pick: Mapping) -> list[tuple[str, Mapping]]:
    """(axis, mapping) pairs: the nearest legal values below and above on every axis that the request leaves open."""
    legal = [d for d in with_fixed(asked, degrees(asked)) if _gpus(d) == pick.gpus and micro_batches(asked, d)]
    found: list[tuple[str, Mapping]] = []
    for axis in SPLITS:
        for value in around(getattr(pick, axis), {getattr(d, axis) for d in legal}):
            found.append((axis, best(asked, pick, _nearest(legal, pick, axis, value))))
    d = degrees_of(pick)
    own = asked.batch // d.dp // int(pick.micro_batch)
    settings = {
        "zero": around(pick.zero, stages(asked, d)),
        "micro_batch": around(pick.micro_batch, micro_batches(asked, d)),
        "recompute": [kept for kept in recompute(asked) if kept != pick.recompute],
        "vpp": around(pick.vpp, [v for v in chunks(asked, d) if v == 1 or own % d.pp == 0]),
        "shard": [s for s in shards(asked, d, int(pick.zero)) if s != pick.shard],
    }
    for axis, values in settings.items():
        found += [(axis, settled(asked, replace(pick, **{axis: value}), d)) for value in values]
    changed = [(axis, mapping) for axis, mapping in found if mapping != pick]
    if not changed:
        return []
    together = several([mapping for _, mapping in changed])
    allowed = can_say(asked.dialect, together) & able(asked.profile, together)
    return [pair for pair, keep in zip(changed, allowed, strict=True) if keep]


def degrees_of(mapping: Mapping) -> Degrees:
    """The degrees of a mapping of plain numbers."""
    return Degrees(*(int(getattr(mapping, axis)) for axis in Degrees._fields))


def around(value: object, values: Iterable[int]) -> list[int]:
    """The nearest of `values` below and above a plain number."""
    here = int(value)  # type: ignore[call-overload]
    below, above = [v for v in values if v < here], [v for v in values if v > here]
    return [*([max(below)] if below else []), *([min(above)] if above else [])]


def _gpus(d: Degrees) -> int:
    return d.tp * d.pp * d.dp * d.cp


def _nearest(legal: Sequence[Degrees], pick: Mapping, axis: str, value: int) -> Degrees:
    """The legal degrees with a value on one axis that change the others least."""

    def moved(d: Degrees) -> float:
        turns = {a: abs(log2(getattr(d, a) / int(getattr(pick, a)))) for a in Degrees._fields if a != axis}
        return sum(DP_WEIGHT * turn if a == "dp" else turn for a, turn in turns.items())

    return min((d for d in legal if getattr(d, axis) == value), key=moved)


def best(asked: Request, pick: Mapping, d: Degrees) -> Mapping:
    """The settings that suit other degrees best: the fastest that fit, of ties those of the pick; where none fits, those
    of the pick as far as they are legal."""
    kept = settled(asked, pick, d)
    rows = said(asked, full(asked, lean(asked, [d])))
    if not rows:
        return kept
    together = mapping_of(asked, rows)
    price = price_of(asked, together)
    fits = price.peak <= capacity(asked)
    if not fits.any():
        return kept
    seconds = np.where(fits, price.seconds, np.inf)
    moved = sum((getattr(together, axis) != getattr(kept, axis)).astype(int) for axis in SETTINGS)
    tied = seconds <= seconds.min() * (1 + TIE)
    return one(together, int(np.lexsort((seconds, moved, ~tied))[0]))


def settled(asked: Request, mapping: Mapping, d: Degrees) -> Mapping:
    """A mapping on other degrees: settings that are not legal there give way."""
    micros, zeros = micro_batches(asked, d), stages(asked, d)
    micro = max((m for m in micros if m <= mapping.micro_batch), default=min(micros, default=1))
    zero = int(mapping.zero) if mapping.zero in zeros else min(zeros, default=0)
    rounds = asked.batch // d.dp // micro % d.pp == 0
    even = [v for v in chunks(asked, d) if v <= mapping.vpp and (rounds or v == 1)]
    whole = d.dp * d.cp % (int(mapping.shard) or 1) == 0 and mapping.shard < d.dp * d.cp and zero
    return replace(
        mapping,
        **d._asdict(),
        micro_batch=micro,
        zero=zero,
        vpp=max(even, default=1),
        shard=mapping.shard if whole else 0,
        sp=asked.fix.get("sp", 1) if d.tp > 1 else 0,
    )
