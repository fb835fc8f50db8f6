"""A report as one HTML page that needs nothing but itself: no request, no script needed to read it, light and dark."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from burnish.chart import downsample, loss_chart
from burnish.document import bar, document, header, keys, pairs, section, table, tile, tiles
from burnish.markup import Html, el, join, text
from burnish.picture_part import pictures, tables
from burnish.reported import Report, Row
from burnish.units import MINUS, MISSING, counted, date, parts, show, signed_percent
from burnish.verified_part import compression

_STATUS = {"done": "done", "trained": "trained, not exported", "partly": "partly done", "planned": "planned, not run"}
_HEADLINES = (
    "bits_per_byte",
    "baseline_bits_per_byte",
    "baseline",
    "better_than_baseline_percent",
)  # of quality: shown as tiles already
_TABLE_ROWS = 16  # evaluations listed as numbers below the curve; the curve shows the others


def render(report: Report) -> str:
    """The whole page as text. Every string of the report is escaped; a part the run did not produce is left out."""
    built = [made for build in _SECTIONS if (made := build(report)) is not None]
    body = join(_header(report), _tiles(report), el("main", *built), _footer())
    return document(f"{report.recipe} {MISSING} Burnish report", body, script="page.js")


def _header(report: Report) -> Html:
    facts: list[object] = [el("span", _STATUS[report.status], cls=f"status {report.status}")]
    if report.started:
        facts.append(el("time", date(report.started), datetime=report.started))
    machine = report.machine.get("processor") or report.planned_machine
    if machine:
        facts.append(el("span", machine))
    if report.total_seconds is not None:
        facts.append(el("span", f"{show(report.total_seconds, 'seconds')} in all"))
    return header("Burnish report", report.recipe, facts)


def _tiles(report: Report) -> Html | None:
    if not report.figures:
        return None
    return tiles(
        [tile(figure.label, figure.value, figure.unit, figure.source, figure.note) for figure in report.figures]
    )


def _loss(report: Report) -> Html | None:
    chart = loss_chart(report)
    if chart is None:
        return None
    inputs, units = sum(step.tokens for step in report.curve), report.units
    note = (
        f"{counted(len(report.curve), 'step')}, {inputs:,} {units.inputs}. Lower is better."
        if report.curve
        else "Lower is better."
    )
    legend = [("train", "training, smoothed"), ("raw", "each step")] if report.curve else []
    legend += [("held", f"{units.heldout}, last {report.evals[-1].loss:.3f}")] if report.evals else []
    return section("Loss", note, keys(legend), el("div", chart, cls="chart"), _evaluations(report))


def _evaluations(report: Report) -> Html | None:
    if not report.evals:
        return None
    chosen = {int(x) for x, _ in downsample([(i, e.loss) for i, e in enumerate(report.evals)], _TABLE_ROWS)}
    rows = [
        (f"{e.step:,}", f"{e.loss:.4f}", f"{e.score if e.bits_per_byte is None else e.bits_per_byte:.4f}")
        for i, e in enumerate(report.evals)
        if i in chosen
    ]
    title = "Held-out loss as numbers"
    if len(rows) < len(report.evals):
        title += f", {len(rows)} of {len(report.evals):,}"
    return el(
        "details", el("summary", title), table(("step", report.units.loss, report.units.score or "bits per byte"), rows)
    )


def _memory(report: Report) -> Html | None:
    rows = [row for row in report.rows if row.key.startswith("memory.")]
    largest = max((v for row in rows for v in (row.predicted, row.measured) if v is not None), default=0)
    if not largest:
        return None
    note = "What one device holds in a training step."
    if report.capacity:
        verdict = {True: "The plan fits.", False: "The plan does not fit.", None: ""}[report.fits]
        note += f" It has {show(report.capacity, 'bytes')}. {verdict}"
    bars = []
    for row in rows:
        pair = [_bar(value, largest, row, source) for value, source in _sides(row)]
        bars.append(el("div", el("dt", row.label), *pair, cls="peak" if row.key == "memory.peak" else None))
    shown = {source for row in rows for _, source in _sides(row)}
    legend = keys((name, name) for name in ("predicted", "measured") if name in shown)
    return section("Memory by kind", note.strip(), legend, el("dl", *bars, cls="bars"))


def _sides(row: Row) -> list[tuple[float, str]]:
    return [(v, name) for v, name in ((row.predicted, "predicted"), (row.measured, "measured")) if v is not None]


def _bar(value: float, largest: float, row: Row, source: str) -> Html:
    words = el("span", f"{source}: ", cls="hidden")
    return el("dd", bar(value / largest, source), el("b", words, show(value, row.unit)))


def _paired(report: Report) -> Html | None:
    if not report.rows:
        return None
    published = any(row.published is not None for row in report.rows)
    heads: list[object] = ["quantity", el("span", "predicted", cls="predicted"), el("span", "measured", cls="measured")]
    heads += [el("span", "published", cls="published")] if published else []
    rows = []
    for row in report.rows:
        cells = [_cell(row.predicted, row.unit), _cell(row.measured, row.unit)]
        cells += [_cell(row.published, row.unit)] if published else []
        rows.append([row.label, *cells, signed_percent(row.error_percent)])
    note = "The error is the prediction against the measurement. A dash marks a value nobody gave."
    return section("Predicted and measured", note, table([*heads, "error"], rows))


def _cell(value: float | None, unit: str) -> Html:
    """Number and unit of a table cell; on a phone the unit may go to the next line."""
    if value is None:
        return text(MISSING)
    number, shown = parts(value, unit)
    return join(number, " ", el("small", shown)) if shown else text(number)


def _passes(report: Report) -> Html | None:
    numbers = {**report.mapping, **report.batch}
    setting = [f"{name.replace('_', ' ')} {_plain(value)}" for name, value in numbers.items()]
    items = [
        el("li", el("code", p.technique), el("em", "planned only") if p.plan_only else None, el("p", p.reason))
        for p in report.passes
    ]
    if not items and not setting:
        return None
    chips = el("p", *(el("code", name) for name in setting), cls="chips") if setting else None
    steps = el("ol", *items, cls="passes") if items else el("p", "None: the model runs as it is written.")
    return section("Passes", "What the plan applies, in this order, and why.", chips, steps)


def _times(report: Report) -> Html | None:
    if not report.seconds:
        return None
    largest = max(report.seconds.values()) or 1.0
    bars = []
    for stage, seconds in report.seconds.items():
        value = el("dd", bar(seconds / largest, "measured"), el("b", show(seconds, "seconds")))
        bars.append(el("div", el("dt", stage), value))
    return section("Time by stage", "Wall time, measured.", el("dl", *bars, cls="bars single"))


def _samples(report: Report) -> Html | None:
    if not report.samples:
        return None
    quotes = [el("blockquote", el("b", sample.prompt), sample.text) for sample in report.samples]
    return section("Sample text", "The prompt is set in bold; the model wrote the rest.", *quotes)


def _files(report: Report) -> Html | None:
    if not report.files:
        return None
    items = [
        el("li", el("b", file.name), el("span", show(file.bytes, "bytes")), el("code", file.sha256))
        for file in report.files
    ]
    return section("Exported files", "Size and sha256 of each.", el("ul", *items, cls="files"))


def _checks(report: Report) -> Html | None:
    if not report.checks:
        return None
    items: list[tuple[object, object]] = []
    for name, value in report.checks.items():
        verdict = {True: "passed", False: "failed"}.get(value) if isinstance(value, bool) else None
        shown = el("span", verdict, cls=verdict) if verdict else el("span", _plain(value))
        items.append((name.replace("_", " "), shown))
    return section("Checks", "Made on the exported files and the run itself.", pairs(items))


def _plain(value: object) -> str:
    """A value of an open record: floats to six digits, a list as its items."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}".replace("-", MINUS)
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, list | tuple):
        return ", ".join(_plain(item) for item in value)
    return MISSING if value is None or value == "" else str(value)


def _pairs(values: Mapping[str, object]) -> Html:
    return pairs((name.replace("_", " "), _unit_aware(name, value)) for name, value in values.items())


def _unit_aware(name: str, value: object) -> str:
    """Sizes among free values are recognized by their name."""
    is_size = name.endswith(("bytes", "memory")) and isinstance(value, int | float) and not isinstance(value, bool)
    return show(float(value), "bytes") if is_size else _plain(value)  # type: ignore[arg-type]


def _quality(report: Report) -> Html | None:
    rest = {name: value for name, value in report.quality.items() if name not in _HEADLINES}
    return section("Quality", "Measured on what the model was not trained on.", _pairs(rest)) if rest else None


def _recipe(report: Report) -> Html | None:
    if not report.recipe_yaml.strip():
        return None
    return section("Recipe", "As resolved and run.", el("pre", el("code", report.recipe_yaml.strip()), tabindex="0"))


def _machine(report: Report) -> Html | None:
    other = report.planned_machine != report.machine.get("processor", "")
    values = {**({"planned for": report.planned_machine} if other else {}), **report.machine}
    return section("Machine", "", _pairs(values)) if values else None


def _versions(report: Report) -> Html | None:
    return section("Versions", "", _pairs(report.versions)) if report.versions else None


def _notes(report: Report) -> Html | None:
    if not report.notes:
        return None
    return section("Notes", "", el("ul", *(el("li", note) for note in report.notes), cls="notes"))


def _compression(report: Report) -> Html | None:
    return compression(report.verified)


def _tables(report: Report) -> Html | None:
    return tables(report.tables)


def _pictures(report: Report) -> Html | None:
    return pictures(report.pictures)


def _footer() -> Html:
    legend = "Every number is predicted (before the run, from the model's description), measured (in it) or published."
    return el("footer", el("p", legend), el("p", "The same content is in report.json beside this page."))


_SECTIONS: tuple[Callable[[Report], Html | None], ...] = (
    _tables,
    _pictures,
    _loss,
    _compression,
    _memory,
    _paired,
    _passes,
    _times,
    _samples,
    _quality,
    _files,
    _checks,
    _notes,
    _recipe,
    _machine,
    _versions,
)
