"""Score of the published attention kernels: fitted without one combination of mask and dropout, judged on it.

bench/score_attention.py [FOLDER] [--fit]    FOLDER holds planner/; --fit prints the constants fitted to all rows
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from burnish.rows.attention import Timed, read_attention
from burnish.serve_plan.attention_time import implementations, kernel_seconds
from published import fitted, left_out, mean, table_file, told

START = {
    "start": 1e-4,
    "start_both": 5e-4,
    "products": 0.5,
    "score": 8.0,
    "mask": 1.0,
    "dropout": 2.0,
    "again": 3.0,
    "matmuls": 3.0,
}
SPREAD = dict.fromkeys(START, 1.5)  # log standard deviation of where a constant starts
Constants = dict[str, dict[str, float]]


def error(row: Timed, c: Constants) -> float:
    """Relative error, percent."""
    assert row.kernel is not None
    assert row.chip is not None
    return 100 * (kernel_seconds(row.kernel, row.chip, c[row.kernel.implementation]) / row.seconds - 1)


def fit(rows: Sequence[Timed]) -> Constants:
    """Constants of each implementation."""
    made: Constants = {}
    for name in implementations():
        own = [row for row in rows if row.kernel and row.kernel.implementation == name]

        def ratios(c: dict[str, float], own: list[Timed] = own, name: str = name) -> list[float]:
            return [1 + error(row, {name: c}) / 100 for row in own]

        made[name] = fitted(START, SPREAD, ratios, ("products",))
    return made


def held_out(rows: Sequence[Timed]) -> list[tuple[Timed, float]]:
    """Errors by constants fitted without any row of the same mask and dropout."""
    found: list[tuple[Timed, float]] = []
    for own, others in left_out(rows, lambda row: row.kernel and (row.kernel.masked, row.kernel.dropout)):
        c = fit(others)
        found += [(row, error(row, c)) for row in own]
    return found


def main() -> int:
    """Read, fit, judge, record, print."""
    rows = read_attention(table_file("rows_attention.csv"))
    read = [row for row in rows if not row.why_not]
    if "--fit" in sys.argv:
        for name, constants in fit(read).items():
            print(name, {key: float(f"{value:.4g}") for key, value in constants.items()})
        return 0
    table = [(row, error(row, implementations())) for row in read]
    values: dict[str, float] = {"rows": len(rows), "read": len(read)}
    for name, found in (("table", table), ("held_out", held_out(read))):
        values[f"{name}_percent"] = mean(off for _, off in found)
        for both, words in ((False, "forward"), (True, "both")):
            for kind in implementations():
                own = [one for one in found if one[0].kernel and one[0].kernel.both == both]
                own = [one for one in own if one[0].kernel and one[0].kernel.implementation == kind]
                values[f"{name}.{kind}.{words}_percent"] = mean(off for _, off in own)
        for row, off in sorted(found, key=lambda one: -abs(one[1]))[:6]:
            print(f"worst, {name}: {row.id} {off:+.0f} %")
    return told("score_attention", rows, values)


if __name__ == "__main__":
    sys.exit(main())
