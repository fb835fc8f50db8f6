"""Score: how well the planner predicts published rows, in any of the kinds of table they come in."""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from burnish.errors import UserError
from burnish.rows.cells import read_table
from burnish.rows.lint import Finding, impossible, lint
from burnish.rows.reports import OUTCOME, read_reports
from burnish.rows.rules import table
from burnish.rows.training import NEEDED, read_rows
from burnish.score import ci, serving, text
from burnish.score.blocks import block, errors
from burnish.score.lines import DISTRUSTED, FIRST_HAND, INCOMPLETE, SECOND_HAND, Line, lines_of
from burnish.score.prices import prices


def score(path: Path | str) -> dict[str, Any]:
    """The record of a file of rows: `overall`, `sources`, what is kept apart, what is not expressed, and the lint.

    Raises UserError where the file is none of the kinds.
    """
    return record(*judged(path))


def shown(path: Path | str, as_json: bool = False, each: bool = False, assumed: bool = False) -> Iterator[str]:
    """What is printed of a file's score: JSON or a table, with every row and with what was assumed where asked for."""
    columns, _ = read_table(path)
    if serving.is_serving(columns):
        yield from serving.shown(path, columns, as_json, each)
        return
    lines, findings = judged(path)
    made = record(lines, findings)
    if as_json:
        more = {"rows": [asdict(line) for line in lines]} if each else {}
        yield json.dumps(_finite({**made, **more}), indent=1, allow_nan=False)
        return
    yield from text.text(made)
    if each:
        yield from text.rows(lines)
    if assumed:
        yield from text.assumptions(lines)


def _finite(value: Any) -> Any:
    """Plain values for JSON, which has no word for what is no finite number: null stands there."""
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def judged(path: Path | str) -> tuple[list[Line], list[Finding]]:
    """Each row beside its prediction, and the lint; the columns of a file tell its kind."""
    columns, _ = read_table(path)
    if ci.ALLOCATED in columns:
        return ci.lines(path), []
    if OUTCOME in columns:
        rows = read_reports(path)
    elif set(NEEDED) <= set(columns):
        rows = read_rows(path)
    else:
        raise UserError(
            f"{path}: no kind of table that can be scored; needed are the columns {', '.join(NEEDED)} (training rows), "
            f"{ci.ALLOCATED} (memory of test runs) or {OUTCOME} (reports)"
        )
    findings = lint(rows)
    # Whether a report can be is what is asked of it, so the lint keeps none of them out.
    refuted = {} if OUTCOME in columns else impossible(findings)
    return lines_of(rows, prices, refuted), findings


def record(lines: Sequence[Line], findings: Sequence[Finding]) -> dict[str, Any]:
    """Everything that is said of lines, as plain values."""
    parts = {name: [line for line in lines if line.part == name] for name in _parts()}
    proper = parts[FIRST_HAND]
    made = _by_source(proper)
    return {
        "overall": {**block(proper), **_means(proper, made)},
        "sources": made,
        **{name: _apart(parts[name]) for name in _parts()[1:]},
        "not_expressed": [
            {"id": line.id, "source": line.source, "reason": line.why_not} for line in lines if not line.expressed
        ],
        "lint": [asdict(finding) for finding in findings],
    }


def _parts() -> tuple[str, ...]:
    return FIRST_HAND, SECOND_HAND, DISTRUSTED, INCOMPLETE


def _by_source(lines: Sequence[Line]) -> dict[str, dict[str, Any]]:
    sources: dict[str, list[Line]] = defaultdict(list)
    for line in lines:
        sources[line.source].append(line)
    return {name: block(members) for name, members in sources.items()}


def _apart(lines: Sequence[Line]) -> dict[str, Any]:
    """Rows that are not in the score proper: their figures, and why each is here."""
    reasons = {line.id: line.apart for line in lines}
    return {**block(lines), "sources": _by_source(lines), "ids": reasons}


def _means(lines: Sequence[Line], sources: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Means that weigh rows otherwise: over sources, over models with experts, over the groups of the table."""
    bars = table("score_bars")
    enough = bars["groups"]["mean_over_sources_of"]
    means = {name: made["time_mean_pct"] for name, made in sources.items() if made["timed"] >= enough}
    worst = max(means, key=lambda name: means[name], default=None)
    return {
        "sources_counted": len(means),
        "mean_over_sources_pct": round(sum(means.values()) / len(means), 3) if means else None,
        "worst_source": worst,
        "worst_source_pct": means[worst] if worst else None,
        "experts_mean_pct": _mean([line for line in lines if line.experts]),
        "subsets": {
            row["name"]: {"rows": len(members), "time_mean_pct": _mean(members), "aim_pct": row["aim"]}
            for row in bars["subset"]
            if (members := [line for line in lines if line.seconds and _belongs(line, row)])
        },
        "memory_groups": ci.groups(lines),
    }


def _mean(lines: Sequence[Line]) -> float | None:
    values = errors(line.seconds for line in lines)
    return round(100 * sum(values) / len(values), 3) if values else None


def _belongs(line: Line, row: dict[str, Any]) -> bool:
    labels = dict(line.labels)
    patterns = {column: row[column] for column in ("source", "workload") if column in row}
    return row.get("experts", line.experts) == line.experts and all(
        re.search(pattern, labels.get(column, ""), re.IGNORECASE) for column, pattern in patterns.items()
    )
