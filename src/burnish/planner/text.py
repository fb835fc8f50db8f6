"""Text: a plan for a terminal, in lines of at most a hundred characters; every number is a prediction."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator

from burnish.hardware import GIB
from burnish.planner.answer import ModelPlan, WhyNot
from burnish.planner.choice import Choice, in_words
from burnish.planner.commands import told
from burnish.planner.pricing import capacity
from burnish.planner.record import shrunk, uncalibrated
from burnish.planner.request import STATES, Request, fixed_words
from burnish.units import counted, show

WIDTH, COLUMN = 100, 22


def lines(plan: ModelPlan) -> Iterator[str]:
    """The whole answer, line by line."""
    yield from heading(plan.request)
    if plan.pick:
        yield from picked(plan, plan.pick)
    else:
        yield from nothing(plan)
    for other in plan.why_not:
        yield from ("", *why_not(plan.request, other))
    yield ""
    for option, reason in plan.ignored.items():
        yield from wrapped("ignored: ", f"{option}: {reason}")
    for note in plan.notes:
        yield from wrapped("note: ", note)
    if uncalibrated(plan.request):
        chip = plan.request.cluster.chip.name
        yield from wrapped("note: ", f"uncalibrated: no measured step of {chip} stands behind these times")
    if plan.pick and plan.request.dialect:
        yield from ("", *told(plan.request, plan.pick.mapping).splitlines())


def why_not(asked: Request, other: WhyNot) -> Iterator[str]:
    """A mapping that was asked about."""
    yield from wrapped(f"why not {fixed_words(other.asked)}: ", other.text)
    if best := other.choice:
        sent = f", {plain(best.cross_node_bytes, 'bytes')} a step over the network" if best.mapping.gpus > 1 else ""
        yield from wrapped("  ", f"at best {best.words}: {figures(asked, best)}{sent}")


def wrapped(start: str, text: str, later: str = "    ") -> list[str]:
    """A sentence over several lines, the later ones set in; a number stays with its unit."""
    whole = re.sub(r"(\d) (%|s|ms|GiB|B)\b|(\d) (%)", lambda found: found[0].replace(" ", "\u00a0"), text)
    cut = textwrap.wrap(whole, WIDTH, initial_indent=start, subsequent_indent=later, break_long_words=False)
    return [line.replace("\u00a0", " ") for line in cut]


def plain(value: float | None, unit: str) -> str:
    """A quantity with plain spaces."""
    return show(value, unit).replace("\u00a0", " ")


def heading(asked: Request) -> Iterator[str]:
    """The question."""
    there = asked.cluster
    tokens = asked.batch * asked.seq
    yield from wrapped("", f"{asked.model.name} on {there.name}: {there.gpus:,} x {there.chip.name}")
    of = f"{counted(asked.batch, 'sequence')} of {asked.seq:,} = {counted(tokens, 'token')}"
    yield from wrapped("step: ", f"{of}, {asked.precision}, as {asked.profile.name} runs it")


def figures(asked: Request, choice: Choice) -> str:
    """Time and memory in one phrase."""
    of = f" of {capacity(asked) / GIB:,.1f}" if asked.cluster.chip.memory else ""
    mark = " (uncalibrated)" if uncalibrated(asked) else ""
    return f"{plain(choice.seconds, 'seconds')} a step{mark}, {choice.memory / GIB:,.1f}{of} GiB a {asked.device}"


def picked(plan: ModelPlan, pick: Choice) -> Iterator[str]:
    """The pick, why, and what stands beside it."""
    asked, m = plan.request, pick.mapping
    yield ""
    yield from wrapped("pick: ", pick.words)
    yield f"  predicted   {figures(asked, pick)}"
    mfu = f", MFU {100 * pick.mfu:.1f} %" if pick.mfu else ""
    count = asked.batch // (int(m.dp) * int(m.micro_batch))
    micro_batches = counted(count, "micro batch", "es")
    yield f"  speed       {plain(pick.tokens_per_second, 'tokens/s')}{mfu}, {micro_batches}"
    if m.gpus > 1:
        sent = plain(pick.cross_node_bytes, "bytes")
        yield f"  network     {sent} a step over {asked.cluster.network.name}, all ranks"
    parts = [f"{cause} {plain(seconds, 'seconds')}" for cause, seconds in _largest(pick.parts)]
    yield from wrapped("  time        ", ", ".join(parts))
    kinds = [f"{kind} {size / GIB:,.1f}" for kind, size in _largest(pick.stages[pick.owner])]
    stage = f" on stage {pick.owner}, the fullest" if m.pp > 1 else ""
    yield from wrapped("  memory      ", f"GiB{stage}: " + ", ".join(kinds))
    yield from wrapped("  ", pick.reason)
    yield from ("", "why")
    for why in plan.why:
        entries = [*([why.merit] if why.merit else []), *(f"{value}: {text}" for value, text in why.against)]
        for place, entry in enumerate(entries):
            start = f"  {why.words if place == 0 else '':<{COLUMN}}"
            yield from wrapped(start, entry, " " * (COLUMN + 4))
    yield from states(plan)
    yield from ("", *table(plan, pick))


def _largest(parts: dict[str, float] | object) -> list[tuple[str, float]]:
    """What matters of a breakdown, largest first."""
    assert isinstance(parts, dict)
    total = sum(parts.values())
    return sorted(((k, v) for k, v in parts.items() if v > 0.001 * total), key=lambda item: -item[1])


def states(plan: ModelPlan) -> Iterator[str]:
    """Bytes before and after, where states were asked to shrink."""
    found = shrunk(plan)
    if found is None:
        return
    gathers = "gathers parameters in forward" if found["forward_gathers"] else "no all-gather in forward"
    where = f" on stage {found['stage']}" if plan.pick and plan.pick.mapping.pp > 1 else ""
    yield from ("", f"ZeRO stage {found['zero']} splits {' and '.join(found['splits'])}; {gathers}; GiB{where}:")
    yield "    ZeRO" + "".join(f"{state:>12}" for state in STATES) + "  all-gathers in forward"
    for row in found["by_zero"]:
        mark = ">" if row["zero"] == found["zero"] else " "
        often = "each layer, each micro batch" if row["forward_gathers"] else "none"
        yield f"{mark}{row['zero']:>7}" + "".join(f"{row[state]:>12,.1f}" for state in STATES) + f"  {often}"


def table(plan: ModelPlan, pick: Choice) -> Iterator[str]:
    """The pick and the best of every other set of degrees, ranked; neighbours are in the reasons above."""
    heads = (("tp", 4), ("pp", 4), ("dp", 6), ("cp", 4), ("ep", 4), ("vpp", 4), ("ZeRO", 5), ("mb", 4))
    yield "  " + "".join(f"{name:>{width}}" for name, width in heads) + f" {'recompute':<10}{'s/step':>9}{'GiB':>7}"
    ranked = [pick, *(other for other in plan.alternatives if not other.change)]
    for place, other in enumerate(ranked):
        m = other.mapping
        values = (m.tp, m.pp, m.dp, m.cp, m.ep, m.vpp, m.zero, m.micro_batch)
        words = "".join(f"{value:>{width}}" for value, (_, width) in zip(values, heads, strict=True))
        mark = ">" if place == 0 else "=" if other.tie else " "
        again = in_words(m).partition("recompute ")[2].split(",")[0] or "none"
        slower = "the pick" if place == 0 else f"{100 * (other.seconds / pick.seconds - 1):+.1f} %"
        yield f"{mark:<2}{words} {again:<10}{other.seconds:>9.4g}{other.memory / GIB:>7,.1f}  {slower}"
    if any(other.tie for other in ranked):
        yield "= tie: the difference is smaller than the model's error; the pick is the simplest of them"


def nothing(plan: ModelPlan) -> Iterator[str]:
    """What is nearest to fitting, and what would fit."""
    yield ""
    most = f"{capacity(plan.request) / GIB:,.1f} GiB a {plan.request.device}"
    yield f"nothing fits: {counted(plan.considered, 'mapping')} tried, each needs more than {most}"
    for other in plan.alternatives:
        yield from wrapped("  nearest: ", f"{other.words}: {other.reason}")
    yield ""
    yield "would fit, predicted" if plan.remedies else "no change of one kind that was tried fits"
    for remedy in plan.remedies:
        text = f"{remedy.change}: {remedy.choice.words}: {plain(remedy.choice.seconds, 'seconds')} a step, "
        yield from wrapped("  ", f"{text}{remedy.choice.memory / GIB:,.1f} GiB")
