"""Reasons of a plan as parts of a page: why the pick, why not the others, what would fit, what had no effect."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from burnish.document import section, table
from burnish.markup import Html, el, join
from burnish.units import MINUS, counted, show

Plan = Mapping[str, Any]


def why_section(plan: Plan) -> Html | None:
    """Each choice of the pick, and what its neighbouring values would be."""
    items = []
    for why in plan["why"]:
        merit = el("p", why["merit"]) if why["merit"] else None
        against = [el("li", el("b", row["value"]), el("span", row["text"])) for row in why["against"]]
        name = el("dt", el("code", why["text"].partition(": ")[0]))
        items.append(el("div", name, el("dd", merit, el("ul", *against) if against else None)))
    note = "Predicted. Each choice of the pick; below it what its next values would be, all else kept."
    return section("Why this mapping", note, el("dl", *items, cls="why")) if items else None


def slower(seconds: float, than: float) -> str:
    """How much longer a step is than the pick's, in percent."""
    share = 100 * (seconds / than - 1)
    return f"{share:+.{0 if abs(share) >= 99.5 else 1}f}\u00a0%".replace("-", MINUS)


def ranked_section(plan: Plan) -> Html | None:
    """The pick and the best mapping of every other set of degrees; neighbours of the pick are folded away."""
    pick = plan["pick"]
    if pick is None:
        return None
    others = [other for other in plan["alternatives"] if not other["change"]]
    near = [other for other in plan["alternatives"] if other["change"]]
    rows = [row(pick, "the pick", el("strong", pick["words"]))]
    rows += [row(other, slower(other["seconds"], pick["seconds"]), other["words"]) for other in others]
    within = f"{100 * plan['ties_within']:g}\u00a0%"
    note = f"Predicted. The best of each other way to split the work, fastest first. What is within {within} is a tie."
    heads = ("mapping", "a step", "slower", "GiB")
    folded = None
    if near:
        moved = [row(other, slower(other["seconds"], pick["seconds"]), other["change"]) for other in near]
        title = f"The pick with one axis moved, {counted(len(near), 'mapping')}"
        folded = el("details", el("summary", title), table(heads, moved, "ranked"))
    return section("Alternatives", note, table(heads, rows, "ranked"), folded)


def row(choice: Mapping[str, Any], against: str, name: object) -> list[object]:
    """A mapping with its reason, its time and its memory."""
    tie = el("em", "tie") if choice["tie"] and against != "the pick" else None
    over = None if choice["fits"] else el("em", "does not fit", cls="failed")
    first = join(el("span", name), tie, over, el("small", choice["reason"]) if choice["reason"] else None)
    return [first, show(choice["seconds"], "seconds"), against, f"{choice['memory_gib']:,.1f}"]


def asked_section(plan: Plan) -> Html | None:
    """Mappings that were asked about."""
    items = []
    for asked in plan["why_not"]:
        name = ", ".join(f"{axis} {value}" for axis, value in asked["asked"].items())
        words = asked["choice"] and asked["choice"]["words"]
        items.append(
            el("div", el("dt", el("code", name)), el("dd", el("p", asked["text"]), el("p", words) if words else None))
        )
    return (
        section("Why not", "Predicted. Mappings that were asked about.", el("dl", *items, cls="why")) if items else None
    )


def states_section(plan: Plan) -> Html | None:
    """States at each ZeRO stage, where they were asked to shrink."""
    found = plan["shrunk"]
    if not found:
        return None
    states = list(found["memory_gib"]["before"])
    rows = [
        [join(f"ZeRO {each['zero']}", el("em", "the pick") if each["zero"] == found["zero"] else None)]
        + [f"{each[state]:,.1f}" for state in states]
        + ["yes" if each["forward_gathers"] else "no"]
        for each in found["by_zero"]
    ]
    note = f"Predicted, GiB on one GPU of stage {found['stage']}. Asked to shrink: {', '.join(found['asked'])}."
    return section("States by ZeRO stage", note, table(["", *states, "gathers in forward"], rows))


def nothing_section(plan: Plan) -> Html | None:
    """What stands in the way, where nothing fits."""
    if plan["fits"]:
        return None
    capacity = plan["cluster"]["memory_gib"]
    searched = counted(plan["searched"]["mappings"], "mapping")
    words = (
        f"{searched} tried; each needs more than the {capacity:,.1f} GiB of a GPU."
        if capacity
        else f"{searched} tried."
    )
    nearest = [
        el("div", el("dt", el("code", other["words"])), el("dd", el("p", other["reason"])))
        for other in plan["alternatives"][:1]
    ]
    return section(
        "What stands in the way",
        "Predicted. The mapping that comes nearest.",
        el("p", words),
        el("dl", *nearest, cls="why"),
    )


def remedies_section(plan: Plan) -> Html | None:
    """The smallest changes that would fit."""
    if plan["fits"]:
        return None
    if not plan["would_fit"]:
        return section("What would fit", "", el("p", "No change of one kind that was tried fits."))
    rows = [
        [
            join(el("span", each["change"]), el("small", each["words"])),
            show(each["seconds"], "seconds"),
            f"{each['memory_gib']:,.1f}",
            f"{each['gpus']:,}",
        ]
        for each in plan["would_fit"]
    ]
    note = "Predicted. The smallest change of each kind, and the best mapping it allows."
    return section("What would fit", note, table(("change", "a step", "GiB", "GPUs"), rows, "ranked"))


def ignored_section(plan: Plan) -> Html:
    """Options that changed nothing."""
    items = [el("li", el("code", each["option"]), f": {each['why']}") for each in plan["ignored"]]
    content = el("ul", *items, cls="notes") if items else el("p", "Nothing: no option was without effect.")
    return section("Ignored", "Options that change nothing here.", content)
