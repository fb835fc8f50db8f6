"""Score of the published rows of serving: constants fitted without a model, judged on it, and source by source.

bench/score_serving.py [FOLDER] [--fit]    FOLDER holds planner/; --fit prints the constants fitted to all rows
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence

from burnish.rows.inference import Timed, read_inference
from burnish.score.serving import batch_seconds
from burnish.serve_plan.passes import constants
from published import fitted, table_file, told
from published import mean as mean_of

# Where every engine's constants start, whatever the rows: of a host that launches ten kernels a layer, and of full memory pages.
START = {
    "layer": 5e-5,
    "prompt": 2e-4,
    "step": 5e-4,
    "row": 5e-6,
    "reduce": 3e-5,
    "memory": 0.8,
    "cache": 0.7,
    "compute": 0.5,
}
SPREAD = dict.fromkeys(START, 1.5) | {"reduce": 0.3}  # log deviations; few rows tell an all-reduce from other causes
SHARES = ("memory", "cache", "compute")
FOLDS = 4
Constants = dict[str, dict[str, float]]


def predicted(row: Timed, what: str, c: Constants) -> float:
    """Seconds of what a row timed."""
    assert row.serving is not None
    return batch_seconds(row, what, c[row.serving.engine])


def fit(rows: Sequence[Timed]) -> Constants:
    """The constants of every engine that rows use."""
    made: Constants = {}
    for engine in sorted({row.serving.engine for row in rows if row.serving}):
        own = [row for row in rows if row.serving and row.serving.engine == engine]
        timed = [(row, what, seconds) for row in own for what, seconds in row.seconds.items()]

        def ratios(c: dict[str, float], timed: list = timed, engine: str = engine) -> list[float]:
            return [predicted(row, what, {engine: c}) / seconds for row, what, seconds in timed]

        made[engine] = fitted(START, SPREAD, ratios, SHARES, tries=60)
    return made


def errors(rows: Iterable[Timed], c: Constants) -> list[tuple[Timed, str, float]]:
    """Relative error of everything timed, percent."""
    return [
        (row, what, 100 * (predicted(row, what, c) / seconds - 1))
        for row in rows
        if row.serving and row.serving.engine in c
        for what, seconds in row.seconds.items()
    ]


def mean(found: Iterable[tuple[Timed, str, float]]) -> float:
    """Mean absolute error, percent."""
    return mean_of(error for *_, error in found)


def held_out(rows: Sequence[Timed]) -> list[tuple[Timed, str, float]]:
    """Errors of rows by constants fitted without any row of the same model: the models are dealt to folds by name."""
    models = sorted({row.serving.model.name for row in rows if row.serving})
    fold = {name: at % FOLDS for at, name in enumerate(models)}
    found: list[tuple[Timed, str, float]] = []
    for at in range(FOLDS):
        own, others = [], []
        for row in rows:
            if row.serving:
                (own if fold[row.serving.model.name] == at else others).append(row)
        found += errors(own, fit(others))
    return found


def main() -> int:
    """Read, fit on halves, judge, record, print."""
    rows = read_inference(table_file("rows_inference.csv"))
    read = [row for row in rows if not row.why_not]
    if "--fit" in sys.argv:
        for engine, values in fit(read).items():
            print(engine, {name: float(f"{value:.4g}") for name, value in values.items()})
        return 0
    held = held_out(read)
    engines = {row.serving.engine for row in read if row.serving}
    table = errors(read, {engine: constants(engine) for engine in engines})
    values: dict[str, float] = {"rows": len(rows), "read": len(read)}
    for name, found in (("table", table), ("held_out", held)):
        for what in ("prefill", "decode", "total"):
            values[f"{name}.{what}_percent"] = mean(one for one in found if one[1] == what)
        values[f"{name}.all_percent"] = mean(found)
    sources: dict[str, list[tuple[Timed, str, float]]] = defaultdict(list)
    for one in held:
        sources[f"{one[0].source.split()[0]} {one[1]}"].append(one)
    for source, found in sources.items():
        print(f"{source}: {len(found)} rows, {mean(found):.1f} %")
    for row, what, error in sorted(held, key=lambda one: -abs(one[2]))[:12]:
        print(f"worst: {row.id} {what} {error:+.0f} %")
    return told("score_serving", rows, values)


if __name__ == "__main__":
    sys.exit(main())
