"""Planner: a request -> the mapping to take, the ones beside it, and why; a record that text, JSON and pages show."""

from __future__ import annotations

from collections.abc import Mapping as Table
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import gcd

from burnish.errors import UserError
from burnish.mapping import Mapping
from burnish.planner.abilities import limits
from burnish.planner.choice import Choice, choice, choices
from burnish.planner.counts import fewer, suited
from burnish.planner.explain import Why, compared, over, percent, reasons, rejected
from burnish.planner.legal import why_illegal
from burnish.planner.remedies import Remedy, remedies
from burnish.planner.request import SPLIT_FROM, USUAL, Request, check, named_value
from burnish.planner.search import Found, by_degrees, pareto, search

SHORT = 5000  # mappings that are priced in little time
CLEARLY = 0.05  # share of its time by which a step on fewer GPUs must be shorter to be told of


@dataclass(frozen=True)
class WhyNot:
    """One mapping that was asked about, against the pick; `choice` is None where it is not legal."""

    asked: Table[str, int]
    text: str
    choice: Choice | None = None


@dataclass(frozen=True)
class ModelPlan:
    """What to do with a model on a cluster. `pick` is None where nothing fits; then `remedies` say what would."""

    request: Request
    pick: Choice | None
    alternatives: tuple[Choice, ...]
    why: tuple[Why, ...] = ()
    pareto: tuple[Choice, ...] = ()
    remedies: tuple[Remedy, ...] = ()
    why_not: tuple[WhyNot, ...] = ()
    stages: tuple[Choice, ...] = ()  # the pick at each ZeRO stage, where states were asked to shrink
    ignored: Table[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    considered: int = 0
    fitting: int = 0

    @property
    def fits(self) -> bool:
        """Whether any mapping does."""
        return self.pick is not None


def plan_model(asked: Request, why_not: Sequence[Table[str, int]] = ()) -> ModelPlan:
    """The plan of a request; each of `why_not` is a mapping, or part of one, to be held against the pick.

    Raises UserError for a request that no mapping could answer. A request for which nothing fits is answered: with what
    would.
    """
    check(asked)
    found = search(asked)
    made = _fitting(asked, found) if found.count else _nothing(asked, found)
    return replace(made, why_not=tuple(against(asked, made.pick, values) for values in why_not))


def _fitting(asked: Request, found: Found) -> ModelPlan:
    def of(index: int) -> Choice:
        return choice(asked, found.mapping, found.price, index)

    best = of(int(found.order[0]))
    tied = set(found.order[: found.tied].tolist())
    ranked = [index for index in by_degrees(found) if index != found.order[0]][: asked.top]
    others = [replace(of(index), tie=index in tied) for index in ranked]
    pick = replace(best, tie=any(other.tie for other in others))
    others = [replace(other, reason=compared(asked, pick, other)) for other in others]
    near = rejected(asked, pick)
    seen = {other.mapping for other in others}
    why = reasons(asked, pick, near)
    pick = replace(pick, reason=_in_short(pick, found))
    return ModelPlan(
        request=asked,
        pick=pick,
        alternatives=(*others, *(other for other in near if other.mapping not in seen)),
        why=tuple(why),
        pareto=tuple(of(index) for index in pareto(found)),
        stages=tuple(choices(asked, [at_stage(pick, zero) for zero in range(4)] if asked.must_shrink else [])),
        ignored=ignored(asked, pick),
        notes=(*notes(asked), *fewer_note(asked, pick, found.considered)),
        considered=found.considered,
        fitting=found.count,
    )


def _in_short(pick: Choice, found: Found) -> str:
    what = f"fastest of {found.count:,} mappings that fit, of {found.considered:,}"
    return f"{what}; the simplest of {found.tied} within the model's error" if found.tied > 1 else what


def _nothing(asked: Request, found: Found) -> ModelPlan:
    nearest = choices(asked, [found.nearest] if found.nearest else [])
    return ModelPlan(
        request=asked,
        pick=None,
        alternatives=tuple(replace(other, reason=over(asked, other)) for other in nearest),
        remedies=tuple(remedies(asked)),
        notes=notes(asked),
        considered=found.considered,
    )


def against(asked: Request, pick: Choice | None, values: Table[str, int]) -> WhyNot:
    """Why the best mapping with `values` is not the pick: illegal, does not fit, or slower, with the numbers."""
    wanted = replace(asked, fix={**asked.fix, **values})
    try:
        check(wanted)
        if illegal := why_illegal(wanted, wanted.fix):
            return WhyNot(values, f"not legal: {illegal}")
        found = search(wanted)
    except UserError as error:
        return WhyNot(values, f"not legal: {error}")
    if found.count:
        best = choice(wanted, found.mapping, found.price, int(found.order[0]))
    else:
        assert found.nearest is not None
        best = choices(wanted, [found.nearest])[0]
    if pick is None:
        return WhyNot(values, over(wanted, best) if not best.fits else "it fits", best)
    if best.mapping == pick.mapping:
        return WhyNot(values, "this is the pick", best)
    reason = compared(asked, pick, best)
    return WhyNot(values, reason, replace(best, reason=reason))


def ignored(asked: Request, pick: Choice) -> dict[str, str]:
    """Options that changed nothing, with the reason."""
    m, fix = pick.mapping, asked.fix
    alone = m.dp * m.cp == 1
    cases = {
        "--fix vpp": (fix.get("vpp", 0) > 0 and m.pp == 1, "one pipeline stage has no chunks"),
        "--fix schedule": ("schedule" in fix and m.pp == 1, "one pipeline stage needs no schedule"),
        "--fix sp": (
            "sp" in fix and m.tp == 1,
            "sequence parallel splits what tensor-parallel ranks would repeat; tp is 1",
        ),
        "--fix zero": (fix.get("zero", 0) > 0 and alone, "one data-parallel rank has nobody to split with"),
        "--fix shard": (fix.get("shard", 0) > 0 and m.zero == 0, "ZeRO stage 0 splits nothing"),
        "--lora-rank": (
            asked.lora_rank > 0 and asked.trained == "all",
            "all weights are trained; --trained lora uses it",
        ),
        "--no-forward-gather": (not asked.forward_gather and alone, "one data-parallel rank gathers nothing"),
    }
    found = {option: reason for option, (holds, reason) in cases.items() if holds}
    return found | dict.fromkeys(without_effect(asked, pick), "the prediction of the pick is the same without it")


def without_effect(asked: Request, pick: Choice) -> list[str]:
    """Options that differ from their defaults although neither time nor memory of the pick does."""
    plain, m = Request(asked.model, asked.cluster, asked.seq, asked.batch), pick.mapping
    found = []
    for name in ("attention", "optimizer", "trained"):
        if getattr(asked, name) != getattr(plain, name):
            other = choices(replace(asked, **{name: getattr(plain, name)}), [m])[0]
            if (other.seconds, other.memory) == (pick.seconds, pick.memory):
                found.append(f"--{name} {getattr(asked, name)}")
    for axis in ("recompute", "offload"):
        if asked.fix.get(axis):
            other = choices(asked, [replace(m, **{axis: 0})])[0]
            if (other.seconds, other.memory) == (pick.seconds, pick.memory):
                found.append(f"--fix {axis}={named_value(axis, asked.fix[axis])}")
    return found


def notes(asked: Request) -> tuple[str, ...]:
    """What a reader of the numbers must know."""
    most = int(asked.model.max_positions)
    found = [asked.stack_note] if asked.stack_note else []
    if asked.precision != USUAL[0] and USUAL[0] not in asked.cluster.chip.flops:
        found.append(f"{asked.cluster.chip.name} has no {USUAL[0]}; products are taken in {asked.precision}")
    if most and asked.seq > most:
        found.append(f"{asked.seq:,} tokens are more than the {most:,} that {asked.model.name} was made for")
    if limited := limits(asked.profile):
        found.append(f"{asked.profile.name} {limited}; only such mappings were looked at")
    if not asked.fewer_gpus and gcd(asked.batch, asked.cluster.gpus) == 1 < min(asked.batch, asked.cluster.gpus):
        gpus = asked.cluster.gpus
        found.append(
            f"no number of ranks but 1 divides both the {asked.batch:,} sequences and the {gpus:,} {asked.device}s: "
            f"nothing can be data parallel; --batch {max(round(asked.batch / gpus), 1) * gpus} could"
        )
    return tuple(found)


def fewer_note(asked: Request, pick: Choice, considered: int) -> tuple[str, ...]:
    """A line where fewer GPUs of the cluster would take clearly less time; looked for where the search is a short one, or
    the batch suits all GPUs badly."""
    counts = fewer(asked)
    if not counts or (suited(asked) and considered > SHORT):
        return ()
    try:
        found = search(replace(asked, counts=counts))
    except UserError:
        return ()
    if not found.count:
        return ()
    best = choice(asked, found.mapping, found.price, int(found.order[0]))
    if pick.seconds < best.seconds * (1 + CLEARLY):
        return ()
    less = percent(1 - best.seconds / pick.seconds)
    return (
        f"{best.mapping.gpus} of the {asked.cluster.gpus} {asked.device}s would take {less} less time: {best.words}; "
        f"--gpus-free looks at fewer",
    )


def at_stage(pick: Choice, zero: int) -> Mapping:
    """The pick's mapping at another ZeRO stage."""
    return replace(pick.mapping, zero=zero, shard=pick.mapping.shard if zero else 0)


def split_kinds(zero: int) -> Sequence[str]:
    """States that data-parallel ranks split at a ZeRO stage."""
    return [kind for kind, stage in SPLIT_FROM.items() if zero >= stage]
