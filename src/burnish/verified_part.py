"""The part of a report that sets a compressed model beside what it was: the metric, the costs, and each part by its harm."""

from __future__ import annotations

from burnish.document import bar, section, table
from burnish.markup import Html, el, join
from burnish.units import MINUS, MISSING, parts, show, signed_percent
from burnish.verified import PERCENT, Cost, Judged, Part, Verified

MOST = 24  # parts drawn; the others are in a table below
SPACE = "\u00a0"
UNITS = {"percent": "%", "points": "points"}


def compression(verified: Verified | None) -> Html | None:
    """Baseline and compressed side by side, then the parts; None where nothing was compressed."""
    if verified is None:
        return None
    done = " + ".join(
        f"{name}{f' ({said})' if (said := verified.settings.get(name)) else ''}" for name in verified.techniques
    )
    return section("Compression", f"{verified.model}: {done}", _figures(verified), _verdict(verified), _parts(verified))


def _figures(verified: Verified) -> Html:
    judged = verified.judged
    rows: list[list[object]] = [
        [judged.name, f"{judged.baseline:.4f}", f"{judged.compressed:.4f}", drop_of(judged)],
    ]
    for cost in verified.costs:
        rows.append([cost.label, _cell(cost.baseline, cost.unit), _cell(cost.compressed, cost.unit), _change(cost)])
        if cost.predicted is not None:
            said = el("span", "predicted", cls="predicted")
            rows.append([said, MISSING, _cell(cost.predicted, cost.unit), ""])
    rows += [[name, MISSING, f"{value:.4g}", ""] for name, value in verified.agreement.items()]
    return table(["quantity", "before", "after", "change"], rows)


def drop_of(judged: Judged) -> str:
    """The change of the figure, with its noise: `+1.63 % ± 0.24`."""
    change = judged.drop if judged.lower_is_better else -judged.drop
    said = f"{change:+.2f}{SPACE}{UNITS[judged.unit]}".replace("-", MINUS)
    return said if judged.noise is None else f"{said} \u00b1{SPACE}{judged.noise:.2f}"


def _cell(value: float | None, unit: str) -> Html | str:
    if value is None:
        return MISSING
    number, shown = parts(value, unit)
    return join(number, " ", el("small", shown))


def _change(cost: Cost) -> str:
    if cost.baseline and cost.compressed is not None:
        return signed_percent(100 * (cost.compressed / cost.baseline - 1))
    return MISSING


def _verdict(verified: Verified) -> Html | None:
    judged = verified.judged
    if judged.max_drop is None:
        return None
    unit = "of the baseline" if judged.unit == PERCENT else "points"
    within = f"at most {judged.max_drop:g} {'%' if judged.unit == PERCENT else ''} {unit}".replace("  ", " ")
    kept = f"; kept as they were: {', '.join(verified.kept)}" if verified.kept else ""
    return el("p", el("span", within, cls="passed" if judged.within else "failed"), kept, cls="verdict")


def _parts(verified: Verified) -> Html | None:
    """A bar for each part: how far the output moves when it alone is compressed."""
    if not verified.parts:
        return None
    worst = sorted(verified.parts, key=lambda part: -part.divergence)[:MOST]
    shown = [part for part in verified.parts if part in worst]
    largest = max(part.divergence for part in worst) or 1.0
    bars = [
        el("div", el("dt", part.name), el("dd", bar(part.divergence / largest, _colour(part)), el("b", _said(part))))
        for part in shown
    ]
    title = f"Divergence when one part alone is compressed, {verified.divergence_unit}"
    if len(shown) < len(verified.parts):
        title += f"; the worst {len(shown)} of {len(verified.parts)}"
    every = [
        [part.name, f"{part.divergence:.3g}", show(part.bytes_saved, "bytes"), "kept" if part.kept else ""]
        for part in verified.parts
    ]
    numbers = table(["part", verified.divergence_unit, "saves", ""], every)
    return join(
        el("p", title, cls="verdict"),
        el("dl", *bars, cls="bars single"),
        el("details", el("summary", "As numbers"), numbers),
    )


def _colour(part: Part) -> str:
    return "predicted" if part.kept else "measured"


def _said(part: Part) -> str:
    return f"{part.divergence:.2g}{' kept' if part.kept else ''}"
