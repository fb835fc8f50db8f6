"""Candidates: the settings that go with legal degrees (ZeRO stage, micro batch, recompute, ...), as arrays to be priced.

The settings that need the least memory are written first, so that degrees which cannot fit are dropped before the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from itertools import product
from typing import NamedTuple

import numpy as np

from burnish.mapping import RECOMPUTE, Mapping
from burnish.planner.counts import divisors
from burnish.planner.legal import Degrees
from burnish.planner.request import SPLIT_FROM, Request

AXES = tuple(field.name for field in fields(Mapping))
NONE, ATTENTION, PRODUCTS, FULL = range(len(RECOMPUTE))
# What is tried where nothing is fixed.
LARGEST_MICRO, SMALL_MICRO, LARGEST_VPP = 128, 8, 8


class Row(NamedTuple):
    """One candidate."""

    degrees: Degrees
    zero: int
    recompute: int
    vpp: int
    shard: int
    micro_batch: int


def lean(asked: Request, degrees: Sequence[Degrees]) -> list[Row]:
    """The settings of least memory for each degrees, ZeRO stage and recompute: smallest micro batch, no chunks."""
    again, vpp, shard = recompute(asked), asked.fix.get("vpp", 1), asked.fix.get("shard", 0)
    rows = []
    for d in degrees:
        micro = min(micro_batches(asked, d), default=0)
        if micro and (vpp == 1 or vpp in chunks(asked, d)) and d.dp * d.cp % (shard or 1) == 0:
            rows += [Row(d, zero, kept, vpp, shard, micro) for zero, kept in product(stages(asked, d), again)]
    return rows


def full(asked: Request, rows: Iterable[Row]) -> list[Row]:
    """Every micro batch, number of chunks and shard of lean rows; interleaving takes micro batches in rounds of pp."""
    out = []
    for row in rows:
        d = row.degrees
        settings = product(chunks(asked, d), shards(asked, d, row.zero), micro_batches(asked, d))
        own = asked.batch // d.dp
        out += [Row(d, row.zero, row.recompute, *s) for s in settings if s[0] == 1 or own // s[2] % d.pp == 0]
    return out


def micro_batches(asked: Request, d: Degrees) -> list[int]:
    """Sequences of a micro batch: powers of two, small divisors, and all that a rank has."""
    own = asked.batch // d.dp
    most = own // d.pp if asked.runnable else own  # a pipeline that runs has a micro batch for every stage
    legal = [m for m in divisors(own) if m <= most and (m <= LARGEST_MICRO or m == asked.fix.get("micro_batch"))]
    return [m for m in legal if _tried(asked, "micro_batch", m, m & (m - 1) == 0 or m <= SMALL_MICRO or m == own)]


def _tried(asked: Request, key: str, value: int, worth: bool) -> bool:
    return value == asked.fix[key] if key in asked.fix else worth


def stages(asked: Request, d: Degrees) -> list[int]:
    """ZeRO stages that shrink what must shrink; one data-parallel rank splits nothing."""
    least = max((SPLIT_FROM[state] for state in asked.must_shrink), default=0)
    most = max(z for z in range(4) if asked.forward_gather or not gathers_forward(z))
    if d.dp * d.cp == 1:
        return [] if least else [asked.fix.get("zero", 0)]
    return [z for z in range(least, most + 1) if _tried(asked, "zero", z, True)]


def gathers_forward(zero: int) -> bool:
    """Whether a ZeRO stage gathers parameters in every forward: only where ranks hold parts of them."""
    return zero >= SPLIT_FROM["parameters"]


def recompute(asked: Request) -> list[int]:
    """Kernels that store no scores gain nothing from running attention alone again; choosing by operation is for stacks
    that wrap modules."""
    stored = asked.attention in ("unfused", "fused-softmax") or asked.profile.flash == "unfused"
    worth = {
        NONE: True,
        ATTENTION: stored and not asked.runnable,
        PRODUCTS: asked.profile.kind in ("fsdp", "plain") and not asked.runnable,
        FULL: True,
    }
    return [kept for kept in worth if _tried(asked, "recompute", kept, worth[kept])]


def chunks(asked: Request, d: Degrees) -> list[int]:
    """Chunks a stage: those that cut its layers evenly."""
    layers = int(asked.model.layers)
    most = layers // d.pp if d.pp > 1 else 1
    fixed = asked.fix.get("vpp")
    even = [v for v in divisors(-(-layers // d.pp)) if v <= LARGEST_VPP]
    return [v for v in (even if fixed is None else [fixed]) if v <= most]


def shards(asked: Request, d: Degrees, zero: int) -> list[int]:
    """Ranks that split one copy of the states: all (0), or those in a node or a domain of fast links."""
    if "shard" in asked.fix:
        return [asked.fix["shard"]]
    near = {size // d.tp for size in (asked.cluster.per_node, asked.cluster.domain)} if zero else set()
    group = d.dp * d.cp
    return [0, *sorted(s for s in near if 1 < s < group and group % s == 0)]


def mapping_of(asked: Request, rows: Sequence[Row]) -> Mapping:
    """Rows as a mapping of arrays; sequence parallel goes with tensor parallel."""
    columns = (
        np.array([(*row.degrees, *row[1:]) for row in rows], dtype=np.int64)
        .reshape(len(rows), len(Degrees._fields) + 5)
        .T
    )
    tp, pp, dp, cp, ep, etp, zero, again, vpp, shard, micro = columns
    one, fix = np.ones_like(tp), asked.fix
    return Mapping(
        tp=tp,
        pp=pp,
        dp=dp,
        cp=cp,
        ep=ep,
        etp=etp,
        vpp=vpp,
        zero=zero,
        shard=np.where(zero > 0, shard, 0),
        sp=np.where(tp > 1, fix.get("sp", 1), 0),
        micro_batch=micro,
        recompute=again,
        schedule=one * fix.get("schedule", Mapping.schedule),
        offload=one * fix.get("offload", Mapping.offload),
    )


def take(mapping: Mapping, which: np.ndarray) -> Mapping:
    """Some candidates of many."""
    return replace(mapping, **{axis: getattr(mapping, axis)[which] for axis in AXES})


def one(mapping: Mapping, index: int) -> Mapping:
    """One candidate as plain numbers."""
    return Mapping(**{axis: int(getattr(mapping, axis)[index]) for axis in AXES})


def several(mappings: Sequence[Mapping]) -> Mapping:
    """Plain mappings as one of arrays."""
    return Mapping(**{axis: np.array([getattr(m, axis) for m in mappings], dtype=np.int64) for axis in AXES})
