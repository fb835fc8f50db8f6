"""Memory against published runs: test runs of Megatron-LM, runs that fitted or did not, users' reports.

Writes bench/results/memory_rows.json. Every verdict that is wrong and every test run beyond its bounds is printed.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from burnish.ci_rows import Prediction, engine_lines, within
from burnish.hardware import GIB
from burnish.memory import peaks
from burnish.rows import read_rows
from burnish.rows.reports import read_reports
from burnish.rows.training import Row
from record import record

DENSE, ROUTED = (40, 0.03), (80, 0.06)  # megabytes or share within which allocated bytes count as predicted
STACK = "aleph-3d-2023"  # whose published sheets say which runs did not fit


def test_runs(path: Path) -> dict[str, Any]:
    """Test runs: share of dense and of routed ones within bounds, mean error of the peak, and what is beyond."""
    lines = [(made, engine) for made, engine in engine_lines(path) if not made.reason]
    dense = [made for made, engine in lines if made.family == "gpt" and engine]
    routed = [made for made, _ in lines if made.family == "moe"]
    values: dict[str, Any] = {"test_runs": len(lines)}
    for name, group, bounds in (("dense", dense, DENSE), ("routed", routed, ROUTED)):
        beyond = [made for made in group if not within(made, *bounds)]
        values[f"{name}_runs"] = len(group)
        values[f"{name}_within_percent"] = percent(1 - len(beyond) / len(group))
        for made in beyond:
            print(f"{made.id}: {gib(made.predicted_allocated):.3f} GiB, measured {gib(made.measured_allocated):.3f}")
    values["peak_mean_percent"] = percent(np.mean([off(made) for made, _ in lines]))
    return values


def off(made: Prediction) -> float:
    """Error of a test run's peak, as a share."""
    assert made.predicted_peak is not None
    assert made.measured_peak is not None
    return abs(made.predicted_peak / made.measured_peak - 1)


def verdicts(rows: Sequence[Row]) -> tuple[int, int]:
    """How many rows there are, and how many verdicts are right; the others are printed."""
    settings = [row.fullest or row.setting for row in rows]
    made = peaks([setting for setting in settings if setting is not None])
    right = (made.peak <= made.capacity) == np.array([row.measured.outcome == "ok" for row in rows])
    for row, peak, capacity in zip(*(np.array(each, dtype=object)[~right] for each in (rows, *made)), strict=True):
        print(f"{row.id}: {peak / GIB:.1f} GiB of {capacity / GIB:.1f}, was {row.measured.outcome}")
    return len(rows), int(right.sum())


def gib(size: float | None) -> float:
    """Bytes in GiB."""
    return (size or 0.0) / GIB


def percent(share: float | np.floating) -> float:
    """A share in percent."""
    return round(100 * float(share), 2)


def main() -> None:
    """Judge all three tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path, help="folder with planner/rows_*.csv and reports/reports_fit.csv")
    data = parser.parse_args().data
    values = test_runs(data / "planner" / "rows_memory_ci.csv")
    sheets = [row for row in read_rows(data / "planner" / "rows_training.csv") if row.setting is not None]
    reports = [row for row in read_reports(data / "reports" / "reports_fit.csv") if row.setting is not None]
    groups = {
        "sheets": [row for row in sheets if row.setting is not None and row.setting.stack_name == STACK],
        "other_runs": [row for row in sheets if row.setting is not None and row.setting.stack_name != STACK],
        "reports": [row for row in reports if row.complete],
    }
    for name, rows in groups.items():
        print(f"{name}:")
        count, right = verdicts(rows)
        values |= {f"{name}_rows": count, f"{name}_right": right, f"{name}_right_percent": percent(right / count)}
    for name, value in values.items():
        print(f"{name} = {value}")
    print(record("memory_rows", values))


if __name__ == "__main__":
    main()
