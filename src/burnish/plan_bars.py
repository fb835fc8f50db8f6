"""Bars of a plan: memory of each pipeline stage stacked by kind against the capacity, and a step's time by cause."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from burnish.document import bar, keys, section, table
from burnish.markup import Html, el, join
from burnish.plan_timeline import SEEN, css, percent
from burnish.units import MISSING, show

GIB = 2.0**30
ROOM = 1.03  # of the scale behind what is longest
Kinds = Sequence[tuple[str, float]]


def gib(value: float | None) -> str:
    """GiB as text; GiB stay GiB, so that columns compare."""
    return MISSING if value is None else f"{value:,.1f}\u00a0GiB"


def stages_of(choice: Mapping[str, Any]) -> list[tuple[int, Kinds]]:
    """Stages of a choice with their kinds of bytes, in GiB, without what is nothing everywhere."""
    rows = [(row["stage"], row["memory_gib"]) for row in choice["stages"]]
    shown = [kind for kind in rows[0][1] if any(sizes.get(kind) for _, sizes in rows)]
    return [(stage, [(kind, sizes.get(kind, 0.0)) for kind in shown]) for stage, sizes in rows]


def named(stage: int, count: int) -> Html:
    """A stage by name; the second stands for all between the first and the last."""
    if count == 1:
        return join("each GPU")
    stands = el("small", f" and up to {count - 2}") if stage == 1 and count > 3 else None
    return join(f"stage {stage}", stands)


def memory_section(choice: Mapping[str, Any], capacity: float | None, title: str = "Memory by stage") -> Html:
    """Stacked bars of a choice, a row for each stage that differs, with the line of what a GPU has."""
    rows, count = stages_of(choice), choice["mapping"]["pp"]
    largest = max([sum(size for _, size in kinds) for _, kinds in rows] + ([capacity] if capacity else [])) * ROOM
    note = "Predicted: what one GPU holds at its fullest moment."
    if capacity:
        note += f" It has {gib(capacity)}."
    if count > 3:
        note += " Stages between the second and the last hold about what the second does, or less."
    edge = f"{capacity / largest:.2%}" if capacity else ""
    where = "edge early" if capacity and capacity < largest / 2 else "edge"
    head = el(
        "div",
        el("dt", ""),
        el("dd", el("span", el("span", f"capacity {gib(capacity)}"), cls=where)),
        aria_hidden="true",
    )
    bars = [
        stacked(named(stage, count), kinds, largest, count > 1 and stage == choice["fullest_stage"])
        for stage, kinds in rows
    ]
    legend = keys((f"fill {css(kind)}", kind) for kind, _ in rows[0][1])
    stack = el(
        "dl",
        head if capacity else None,
        *bars,
        cls="bars single stack" + (" bounded" if capacity else ""),
        style=f"--edge:{edge}" if edge else None,
    )
    return section(title, note, legend, stack, numbers(rows, count))


def stacked(name: Html, kinds: Kinds, largest: float, fullest: bool) -> Html:
    """One bar: its kinds beside each other, and their sum."""
    total = sum(size for _, size in kinds)
    pieces = [el("i", cls=css(kind), style=f"width:{size / largest:.3%}") for kind, size in kinds if size]
    words = el("span", ", ".join(f"{kind} {gib(size)}" for kind, size in kinds if size) + "; in all ", cls="hidden")
    mark = el("em", "fullest") if fullest else None
    return el("div", el("dt", name, mark), el("dd", el("span", *pieces, cls="track"), el("b", words, gib(total))))


def numbers(rows: Sequence[tuple[int, Kinds]], count: int) -> Html:
    """The same in figures."""
    heads = ["GiB", *(named(stage, count) for stage, _ in rows)]
    kinds = [kind for kind, _ in rows[0][1]]
    cells = [[kind, *(f"{dict(sizes)[kind]:,.2f}" for _, sizes in rows)] for kind in kinds]
    cells.append(["in all", *(f"{sum(size for _, size in sizes):,.2f}" for _, sizes in rows)])
    return el("details", el("summary", "Memory as numbers"), table(heads, cells))


def time_section(choice: Mapping[str, Any]) -> Html:
    """Seconds of a step by cause, longest first; what would be shown as nothing is left out."""
    total = choice["seconds"]
    seen = [(cause, seconds) for cause, seconds in choice["parts"].items() if seconds >= SEEN * total]
    causes = sorted(seen, key=lambda pair: -pair[1])
    longest = max((seconds for _, seconds in causes), default=1.0)
    bars = []
    for cause, seconds in causes:
        figure = el("b", show(seconds, "seconds"), el("small", percent(seconds / total)))
        bars.append(el("div", el("dt", cause), el("dd", bar(seconds / longest, "predicted"), figure)))
    return section(
        "Time by cause",
        f"Predicted. Together {show(total, 'seconds')} a step.",
        el("dl", *bars, cls="bars single causes"),
    )
