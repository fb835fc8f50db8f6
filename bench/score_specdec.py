"""Score of the published gains of drafting: the formula with verification for free, and two constants fitted on the other task.

bench/score_specdec.py [FOLDER] [--fit]    FOLDER holds planner/; --fit prints the constants fitted to all rows
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence

from burnish.rows.speculation import Drafted, read_speculation
from published import Constants, fitted, left_out, mean, table_file, told

START = {"dearer": 1.0, "verify": 1.0}  # a draft over what is stated; a step that verifies, in plain ones
SPREAD = dict.fromkeys(START, 0.5)


def error(row: Drafted, c: Constants) -> float:
    """Relative error, percent."""
    return 100 * (row.predicted(**c) / row.measured - 1)


def fit(rows: Sequence[Drafted]) -> Constants:
    """Both constants."""
    return fitted(START, SPREAD, lambda c: [row.predicted(**c) / row.measured for row in rows])


def task(row: Drafted) -> str:
    """What rows are left out by: one task at both temperatures."""
    return row.group.split()[0]


def main() -> int:
    """Read, fit, judge, record, print."""
    rows = read_speculation(table_file("rows_specdec.csv"))
    read = [row for row in rows if not row.why_not]
    if "--fit" in sys.argv:
        print({name: float(f"{value:.4g}") for name, value in fit(read).items()})
        return 0
    held = [(row, error(row, fit(others))) for own, others in left_out(read, task) for row in own]
    for row in read:
        print(
            f"{row.id}: {row.group}, predicted {row.predicted():.2f}, measured {row.measured}, {error(row, START):+.0f} %"
        )
    costs = [row.round_cost for row in rows if row.round_cost is not None]
    values = {
        "rows": len(rows),
        "read": len(read),
        "table_percent": mean(error(row, START) for row in read),
        "worst_percent": max(abs(error(row, START)) for row in read),
        "held_out_percent": mean(off for _, off in held),
        "from_published": max(abs(row.predicted() - row.published) for row in read if row.published is not None),
        "rounds": len(costs),
        "round_cost.least": min(costs),
        "round_cost.median": statistics.median(costs),
        "round_cost.most": max(costs),
    }
    return told("score_specdec", rows, values)


if __name__ == "__main__":
    sys.exit(main())
