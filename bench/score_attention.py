"""Score of the published attention kernels: fitted without one combination of mask and dropout, judged on it.

bench/score_attention.py [FOLDER] [--fit]    FOLDER holds planner/; --fit prints the constants fitted to all rows
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from burnish.rows.attention import Timed, read_attention
from burnish.serve_plan.attention_time import implementations, kernel_seconds
from record import record

BESIDE = Path(__file__).parents[2] / "shared" / "data"
ROWS = Path("planner", "rows_attention.csv")
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
SPREAD = 1.5  # log standard deviation of where a constant starts
Constants = dict[str, dict[str, float]]


def error(row: Timed, c: Constants) -> float:
    """Relative error, percent."""
    assert row.kernel is not None
    assert row.chip is not None
    return 100 * (kernel_seconds(row.kernel, row.chip, c[row.kernel.implementation]) / row.seconds - 1)


def fit(rows: Sequence[Timed]) -> Constants:
    """Constants of each implementation: least squares of log errors, robust, held near where they start."""
    from scipy.optimize import least_squares

    made: Constants = {}
    for name in implementations():
        own = [row for row in rows if row.kernel and row.kernel.implementation == name]

        def constants(x: np.ndarray) -> dict[str, float]:
            moved = {key: value * float(np.exp(step)) for (key, value), step in zip(START.items(), x, strict=True)}
            return moved | {"products": min(moved["products"], 1.0)}

        def residuals(x: np.ndarray, own: list[Timed] = own, name: str = name) -> np.ndarray:
            c = {name: constants(x)}
            return np.array([*(np.log(1 + error(row, c) / 100) / 0.1 for row in own), *(x / SPREAD)])

        made[name] = constants(least_squares(residuals, np.zeros(len(START)), loss="soft_l1").x)
    return made


def held_out(rows: Sequence[Timed]) -> list[tuple[Timed, float]]:
    """Errors by constants fitted without any row of the same mask and dropout."""
    found: list[tuple[Timed, float]] = []
    for combination in sorted({(row.kernel.masked, row.kernel.dropout) for row in rows if row.kernel}):
        own = [row for row in rows if row.kernel and (row.kernel.masked, row.kernel.dropout) == combination]
        c = fit([row for row in rows if row not in own])
        found += [(row, error(row, c)) for row in own]
    return found


def mean(found: Sequence[tuple[Timed, float]]) -> float:
    """Mean absolute error, percent."""
    return float(np.mean([abs(one) for _, one in found]))


def main() -> int:
    """Read, fit, judge, record, print."""
    given = [word for word in sys.argv[1:] if not word.startswith("-")]
    rows = read_attention((Path(given[0]) if given else BESIDE) / ROWS)
    read = [row for row in rows if not row.why_not]
    if "--fit" in sys.argv:
        for name, constants in fit(read).items():
            print(name, {key: float(f"{value:.4g}") for key, value in constants.items()})
        return 0
    table = [(row, error(row, implementations())) for row in read]
    values: dict[str, float] = {"rows": len(rows), "read": len(read)}
    for name, found in (("table", table), ("held_out", held_out(read))):
        values[f"{name}_percent"] = mean(found)
        for both, words in ((False, "forward"), (True, "both")):
            for kind in implementations():
                own = [one for one in found if one[0].kernel and one[0].kernel.both == both]
                own = [one for one in own if one[0].kernel and one[0].kernel.implementation == kind]
                values[f"{name}.{kind}.{words}_percent"] = mean(own)
        for row, off in sorted(found, key=lambda one: -abs(one[1]))[:6]:
            print(f"worst, {name}: {row.id} {off:+.0f} %")
    for reason, count in Counter(row.why_not.split(":")[0] for row in rows if row.why_not).most_common():
        print(f"not judged: {count} for their {reason}")
    for name, value in values.items():
        print(f"{name} = {value:.4g}")
    print(record("score_attention", values))
    return 0


if __name__ == "__main__":
    sys.exit(main())
