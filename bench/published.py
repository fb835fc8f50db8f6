"""Published rows: where they lie, constants fitted to some of them, and what is printed and recorded of all."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np

from record import record

BESIDE = Path(__file__).parents[2] / "shared" / "data" / "planner"
CLOSE = 0.1  # log error of a row that weighs as much as a constant one spread away from where it starts
Constants = dict[str, float]
Row = TypeVar("Row")


class Read(Protocol):
    """A row that says why it is not judged, where it is not."""

    @property
    def why_not(self) -> str: ...


def table_file(name: str) -> Path:
    """A table in FOLDER/planner where a folder was given, else in the one beside the checkout."""
    given = [word for word in sys.argv[1:] if not word.startswith("-")]
    return (Path(given[0]) / "planner" if given else BESIDE) / name


def fitted(
    start: Mapping[str, float],
    spread: Mapping[str, float],
    ratios: Callable[[Constants], Sequence[float]],
    shares: Iterable[str] = (),
    tries: int | None = None,
) -> Constants:
    """Least squares of log errors, robust, each constant held near where it starts by its log standard deviation.

    `ratios`: predicted over measured of every row. `shares` are at most 1.
    """
    from scipy.optimize import least_squares

    def constants(x: np.ndarray) -> Constants:
        moved = {name: value * float(np.exp(step)) for (name, value), step in zip(start.items(), x, strict=True)}
        return {name: min(value, 1.0) if name in shares else value for name, value in moved.items()}

    def residuals(x: np.ndarray) -> np.ndarray:
        return np.array([*(np.log(ratios(constants(x))) / CLOSE), *(x / [spread[name] for name in start])])

    return constants(least_squares(residuals, np.zeros(len(start)), loss="soft_l1", max_nfev=tries).x)


def left_out(rows: Iterable[Row], group: Callable[[Row], object]) -> Iterable[tuple[list[Row], list[Row]]]:
    """Of each group of rows: its rows, and all others."""
    rows = list(rows)
    for name in sorted({group(row) for row in rows}, key=repr):
        yield [row for row in rows if group(row) == name], [row for row in rows if group(row) != name]


def mean(errors: Iterable[float]) -> float:
    """Mean absolute error, percent."""
    return float(np.mean(np.abs(list(errors))))


def told(name: str, rows: Sequence[Read], values: Mapping[str, float]) -> int:
    """Print why rows are not judged, and the values, and record them."""
    for reason, count in Counter(row.why_not.split(":")[0] for row in rows if row.why_not).most_common():
        print(f"not judged: {count} for their {reason}")
    for key, value in values.items():
        print(f"{key} = {value:.4g}")
    print(record(name, values))
    return 0
