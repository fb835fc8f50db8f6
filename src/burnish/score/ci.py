"""Score CI: memory of test runs as score lines, and how many of a group are predicted closely."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from burnish.ci_rows import Prediction, engine_lines
from burnish.rows.rules import table
from burnish.score.blocks import block
from burnish.score.lines import Line

ALLOCATED = "mem_allocated_bytes"


def lines(path: Path | str) -> list[Line]:
    """A line for each test run of a CSV file. Raises UserError where the file is none of such runs."""
    return [_line(prediction, engine) for prediction, engine in engine_lines(path)]


def _line(made: Prediction, engine: bool) -> Line:
    labels = {"source": made.source, "family": made.family, "layers": "engine" if engine else "local"}
    return Line(
        id=made.id,
        source=made.source,
        why_not=made.reason,
        experts=made.family == "moe",
        allocated=_pair(made.predicted_allocated, made.measured_allocated),
        peak=_pair(made.predicted_peak, made.measured_peak),
        labels=tuple(labels.items()),
    )


def _pair(predicted: float | None, measured: float | None) -> tuple[float, float] | None:
    return (predicted, measured) if predicted is not None and measured else None


def groups(shown: Sequence[Line]) -> dict[str, Any]:
    """For each group of the table: rows, the share of them within so many megabytes or percent, and what is aimed at."""
    made = {}
    for row in table("score_bars")["memory"]:
        members = [line for line in shown if line.allocated and _belongs(line, row)]
        if members:
            beyond = [line for line in members if not _close(line, row["megabytes"], row["percent"])]
            figures = block(members)
            made[row["name"]] = {
                "rows": len(members),
                "within_pct": round(100 * (1 - len(beyond) / len(members)), 2),
                "within": f"{row['megabytes']} MB or {row['percent']} %",
                "aim_pct": row["aim"],
                **{name: figures[name] for name in ("memory_mean_pct", "memory_median_mb", "peak_mean_pct")},
                "beyond": sorted(line.id for line in beyond),
            }
    return made


def _belongs(line: Line, row: dict[str, Any]) -> bool:
    labels = dict(line.labels)
    return all(labels.get(column) == row[column] for column in ("family", "layers") if column in row)


def _close(line: Line, megabytes: float, percent: float) -> bool:
    predicted, measured = line.allocated or (0.0, 0.0)
    return abs(predicted - measured) <= max(megabytes * 1e6, percent / 100 * measured)
