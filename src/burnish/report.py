"""Report: a plan and the records of its run, each quantity beside its prediction and labelled with its source."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from burnish.page import render
from burnish.records import Plan, Records, save, write_text
from burnish.reported import SOURCES, Figure, Report, Row

__all__ = ["METRICS", "Figure", "Report", "Row", "make_report", "write_report"]


AXES = {"all": "all ranks", "tp": "tensor", "dp": "data", "shard": "shards", "replicate": "copies", "pp": "stages"}


class Metric(NamedTuple):
    """How a quantity shared by a plan and its records is named and in which unit it is kept."""

    key: str
    label: str
    unit: str


METRICS = (
    Metric("parameters", "Parameters", "count"),
    Metric("memory.parameters", "Weights", "bytes"),
    Metric("memory.gradients", "Gradients", "bytes"),
    Metric("memory.optimizer", "Optimizer state", "bytes"),
    Metric("memory.saved", "Saved for backward", "bytes"),
    Metric("memory.passing", "Comes and goes in a step", "bytes"),
    Metric("memory.reserve", "Allocator's reserve", "bytes"),
    Metric("memory.peak", "Peak memory", "bytes"),
    Metric("flops.step", "Work per step", "FLOPs"),
    Metric("seconds.step", "Time per step", "seconds"),
    Metric("tokens_per_second", "Throughput", "tokens/s"),
    Metric("images_per_second", "Throughput", "images/s"),
    Metric("mfu", "Model FLOPs utilization", "fraction"),
    Metric("comm.count", "Collectives per step", "count"),
    Metric("comm.bytes", "Collective traffic per step", "bytes"),
    Metric("file.bytes", "Exported weights", "bytes"),
    Metric("compressed.bytes", "Compressed weights", "bytes"),
)


def error_percent(predicted: float | None, measured: float | None) -> float | None:
    """100 (predicted - measured) / measured; None where a side is missing or only the measurement is zero."""
    if predicted is None or measured is None:
        return None
    if measured == 0:
        return 0.0 if predicted == 0 else None
    return 100.0 * (predicted - measured) / measured


def _place(key: str) -> int:
    """Where a quantity stands: as METRICS has it, what is sent on one axis behind what is sent in all, others last."""
    listed = [metric.key for metric in METRICS]
    whole = "comm.bytes" if key.startswith("comm.bytes.") else key
    return listed.index(whole) if whole in listed else len(listed)


def _unlisted(key: str) -> Metric:
    """A quantity without a row above: what is sent on one axis of the ranks, or whatever else there is."""
    axis = key.removeprefix("comm.bytes.")
    return Metric(key, key, "") if axis == key else Metric(key, f"  of it {AXES.get(axis, axis)}", "bytes")


def pair(
    predicted: Mapping[str, float], measured: Mapping[str, float], published: Mapping[str, float] | None = None
) -> tuple[Row, ...]:
    """One row for each key that any side has: those of METRICS in its order, then the others by name."""
    sides = (predicted, measured, published or {})
    present = set().union(*sides)
    known = {metric.key for metric in METRICS}
    unlisted = [_unlisted(key) for key in sorted(present - known)]
    metrics = [m for m in METRICS if m.key in present] + unlisted
    metrics.sort(key=lambda m: _place(m.key))
    rows = []
    for metric in metrics:
        values = [side.get(metric.key) for side in sides]
        rows.append(
            Row(
                **metric._asdict(),
                predicted=values[0],
                measured=values[1],
                published=values[2],
                error_percent=error_percent(values[0], values[1]),
            )
        )
    return tuple(rows)


def make_report(
    plan: Plan, records: Records | None = None, *, recipe_yaml: str = "", published: Mapping[str, float] | None = None
) -> Report:
    """Join a plan with the records of its run; without records the report shows the plan alone.

    `records.quality` may hold `bits_per_byte`, `baseline_bits_per_byte` and `baseline` (what the baseline is): they
    become headline figures.
    """
    run = records or Records()
    rows = pair(plan.predicted, run.measured, published)
    return Report(
        recipe=plan.recipe,
        status=records.status if records else "planned",
        started=run.started,
        total_seconds=sum(run.seconds.values()) if run.seconds else None,
        planned_machine=plan.machine,
        machine=run.machine,
        mapping=plan.mapping,
        batch=plan.batch,
        capacity=plan.capacity,
        fits=plan.fits,
        figures=_figures(rows, run),
        rows=rows,
        passes=plan.passes,
        seconds=run.seconds,
        curve=run.curve,
        evals=run.evals,
        quality=run.quality,
        samples=run.samples,
        tables=run.tables,
        pictures=run.pictures,
        units=run.units,
        files=run.files,
        checks=run.checks,
        verified=run.verified,
        recipe_yaml=recipe_yaml,
        versions=run.versions,
        notes=(*plan.notes, *run.notes),
    )


def write_report(report: Report, folder: Path) -> tuple[Path, Path]:
    """Write `report.json` and `report.html` into `folder`, each whole or not at all; returns both paths."""
    as_json, as_html = folder / "report.json", folder / "report.html"
    save(report, as_json)
    write_text(as_html, render(report))
    return as_json, as_html


def _figures(rows: tuple[Row, ...], run: Records) -> tuple[Figure, ...]:
    """The headline numbers, most telling first; a measured value is preferred to a predicted one."""
    figures = _score_figures(run) if run.units.score else _quality_figures(run)
    by_key = {row.key: row for row in rows}
    for key, label, unit in (
        ("tokens_per_second", "Throughput", "tokens/s"),
        ("images_per_second", "Throughput", "images/s"),
        ("memory.peak", "Peak memory", "bytes"),
        ("parameters", "Parameters", "short count"),
        ("file.bytes", "Exported weights", "bytes"),
    ):
        row = by_key.get(key)
        if row is None:
            continue
        for source in SOURCES:
            value = getattr(row, source)
            if value is not None:
                figures.append(Figure(label=label, value=value, unit=unit, source=source, note=_beside(key, by_key)))
                break
    return tuple(figures)


def _beside(key: str, rows: Mapping[str, Row]) -> str:
    """What helps to read a headline figure: utilization beside throughput."""
    utilization = rows.get("mfu")
    if key == "tokens_per_second" and utilization is not None and utilization.measured is not None:
        return f"{100 * utilization.measured:.0f} % of peak FLOPs"
    return ""


def _score_figures(run: Records) -> list[Figure]:
    """The run's own score, and what it was taken on."""
    found = run.quality.get("score", run.evals[-1].score if run.evals else None)
    if not isinstance(found, float | int):
        return []
    note = str(run.quality.get("judged on", run.units.heldout))
    return [Figure(label=run.units.score, value=found, unit="", source="measured", note=note)]


def _quality_figures(run: Records) -> list[Figure]:
    """Bits per byte on unseen text, and how far that is from the baseline."""
    ours, base = run.quality.get("bits_per_byte"), run.quality.get("baseline_bits_per_byte")
    if not isinstance(ours, float | int) and run.evals:
        ours = run.evals[-1].bits_per_byte
    if not isinstance(ours, float | int):
        return []
    figures = [Figure(label="Unseen text", value=ours, unit="bits per byte", source="measured")]
    if isinstance(base, float | int) and base:
        name = str(run.quality.get("baseline", "baseline"))
        gain = 100.0 * (base - ours) / base
        note = f"{'better' if gain > 0 else 'worse'} than {name}, {base:.3f}"
        figures.append(Figure(label="Against baseline", value=gain, unit="percent", source="measured", note=note))
    return figures
