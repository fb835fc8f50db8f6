"""Explain: each choice of a mapping as an inequality with numbers, and each rejected one with what stopped it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from burnish.hardware import GIB
from burnish.mapping import Mapping
from burnish.planner.choice import Choice, choices, named
from burnish.planner.neighbours import neighbours
from burnish.planner.pricing import capacity, tensor_seconds
from burnish.planner.request import Request
from burnish.planner.search import TIE
from burnish.units import show

WORDS = {
    "tp": "tensor parallel",
    "pp": "pipeline stages",
    "dp": "data parallel",
    "cp": "context parallel",
    "ep": "expert parallel",
    "zero": "ZeRO stage",
    "micro_batch": "micro batch",
    "recompute": "recompute",
    "vpp": "chunks a stage",
    "shard": "states split over",
}


@dataclass(frozen=True)
class Why:
    """One choice of the pick: the axis, its value, what speaks for it, and what each neighbouring value would be."""

    axis: str
    value: int | str
    merit: str
    against: tuple[tuple[int | str, str], ...]

    @property
    def words(self) -> str:
        """The choice by its full name: `tensor parallel 8`."""
        whole = self.axis == "shard" and self.value == 0
        return f"{WORDS[self.axis]} {'all' if whole else self.value}"

    @property
    def text(self) -> str:
        """All of it in one line."""
        parts = [*([self.merit] if self.merit else []), *(f"{value}: {reason}" for value, reason in self.against)]
        return f"{self.words}: " + "; ".join(parts)


def compared(asked: Request, pick: Choice, other: Choice) -> str:
    """What keeps `other` from being the pick: GiB over and where, or seconds more and in which part."""
    if not other.fits:
        return over(asked, other, pick)
    slower = other.seconds - pick.seconds
    share = percent(abs(slower) / pick.seconds)
    if abs(slower) <= TIE * min(pick.seconds, other.seconds):
        return f"a tie ({'+' if slower >= 0 else '-'}{share}), less simple: {_less_simple(pick, other)}"
    if slower < 0:
        return f"{share} faster; refused by what the request keeps to"
    cause, more = most_more(pick, other)
    return f"{_s(slower)} slower (+{share}): {_s(more)} more in {cause}"


def percent(share: float) -> str:
    """A share as `0.42 %`, `4.2 %`, `42 %`."""
    value = 100 * share
    return f"{value:.0f} %" if value >= 9.95 else f"{value:.1f} %" if value >= 0.95 else f"{value:.2f} %"


def most_more(pick: Choice, other: Choice) -> tuple[str, float]:
    """The part of a step's time in which `other` takes most more."""
    causes = {*pick.parts, *other.parts}
    more = {cause: other.parts.get(cause, 0.0) - pick.parts.get(cause, 0.0) for cause in causes}
    cause = max(sorted(more), key=lambda key: more[key])
    return cause, more[cause]


def over(asked: Request, other: Choice, pick: Choice | None = None) -> str:
    """How far a mapping does not fit, on which stage, and by which kind of bytes."""
    kinds = other.stages[other.owner]
    base = {} if pick is None else pick.stages[min(pick.stages, key=lambda stage: abs(stage - other.owner))]
    grown = {kind: size - base.get(kind, 0.0) for kind, size in kinds.items()}
    kind = max(sorted(grown), key=lambda key: grown[key])
    where = f" on stage {other.owner}" if other.mapping.pp > 1 else ""
    instead = f" instead of {_gib(base[kind])}" if kind in base else ""
    return f"{_gib(other.memory - capacity(asked))} GiB over{where}: {kind} {_gib(kinds[kind])}{instead} GiB"


def _less_simple(pick: Choice, other: Choice) -> str:
    ours, theirs = named(pick.mapping), named(other.mapping)
    differ = [f"{axis} {theirs[axis]} for {ours[axis]}" for axis in WORDS if ours[axis] != theirs[axis]]
    return ", ".join(differ) or "the same"


def _gib(size: float) -> str:
    return f"{size / GIB:,.1f}"


def _s(seconds: float) -> str:
    return show(seconds, "seconds").replace("\u00a0", " ")


def rejected(asked: Request, pick: Choice) -> list[Choice]:
    """The neighbours of the pick, priced, each with the change it is and what stopped it."""
    pairs = neighbours(asked, pick.mapping)
    priced = choices(asked, [mapping for _, mapping in pairs])
    return [
        replace(other, change=changed(axis, pick.mapping, other.mapping), reason=compared(asked, pick, other))
        for (axis, _), other in zip(pairs, priced, strict=True)
    ]


def changed(axis: str, ours: Mapping, theirs: Mapping) -> str:
    """`tp 8 -> 4 (dp 8 -> 16)`: the axis first, then what gave way."""
    a, b = named(ours), named(theirs)
    along = [f"{k} {a[k]} -> {b[k]}" for k in WORDS if a[k] != b[k] and k != axis]
    return f"{axis} {a[axis]} -> {b[axis]}" + (f" ({', '.join(along)})" if along else "")


def reasons(asked: Request, pick: Choice, others: Sequence[Choice]) -> list[Why]:
    """Each choice of the pick as inequalities: what it costs, and what its neighbours would."""
    values, found = named(pick.mapping), []
    for axis in WORDS:
        around = [other for other in others if other.change.startswith(f"{axis} ")]
        merit = tensor_links(asked, pick) if axis == "tp" and pick.mapping.tp > 1 else ""
        if axis in asked.fix:
            merit = f"fixed; {merit}" if merit else "fixed"
        if around or merit:
            against = tuple((_value(axis, pick.mapping, other.mapping), other.reason) for other in around)
            found.append(Why(axis, values[axis], merit, against))
    return found


def _value(axis: str, ours: Mapping, theirs: Mapping) -> int | str:
    """The neighbour's value, with what gave way beside data parallel."""
    a, b = named(ours), named(theirs)
    along = [f"{key} {b[key]}" for key in WORDS if a[key] != b[key] and key not in (axis, "dp")]
    value = "all" if axis == "shard" and b[axis] == 0 else b[axis]
    return f"{value} with {', '.join(along)}" if along else value


def tensor_links(asked: Request, pick: Choice) -> str:
    """What a layer's tensor-parallel traffic takes on the links it uses and on the other kind, hidden or not, and how much
    of it shows."""
    there, tp = asked.cluster, int(pick.mapping.tp)
    inside = tp <= there.domain
    fast, slow = (replace(there, domain=d) for d in (max(tp, there.domain), 1 if inside else there.domain))
    near, far = (tensor_seconds(replace(asked, cluster=links), pick.mapping)[0] for links in (fast, slow))
    shows = f", of which {_s(tensor_seconds(asked, pick.mapping)[1])} shows"
    stays = f"stays in the {'node' if there.domain <= there.per_node else 'domain'} of {there.domain}"
    where = stays if inside else f"crosses domains of {there.domain}"
    on_fast = f"{_s(near)} a layer and micro batch on {there.link.name}{shows if inside else ''}"
    return f"{where}: {on_fast}; {_s(far)} across {there.network.name}{'' if inside else shows}"
