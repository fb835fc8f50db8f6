"""Score text: the record of a score as lines for a terminal of a hundred columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from burnish.score.lines import Line

NAME = 36
COLUMNS = (
    ("rows", "rows", 5, 0),
    ("expressed", "expr", 5, 0),
    ("time_median_pct", "median", 7, 1),
    ("time_mean_pct", "mean", 6, 1),
    ("time_worst_pct", "worst", 6, 1),
    ("memory_mean_pct", "mem %", 8, 1),
    ("memory_median_mb", "mem MB", 7, 0),
    ("fit_right", "right", 6, 0),
    ("fit_wrong", "wrong", 6, 0),
    ("kendall_tau", "tau", 5, 2),
)
MANY = 40  # sources beyond which small ones are left to the JSON
SMALL = 3


def text(record: dict[str, Any]) -> Iterator[str]:
    """A table of the sources, the groups with what is aimed at, what is kept apart, what is not expressed, the lint."""
    yield f"{'source':<{NAME}}" + "".join(f"{title:>{width}}" for _, title, width, _ in COLUMNS)
    sources = record["sources"]
    shown = {name: made for name, made in sources.items() if len(sources) <= MANY or made["rows"] >= SMALL}
    for name, made in shown.items():
        yield _row(name, made)
    if len(shown) < len(sources):
        yield f"({len(sources) - len(shown)} sources of fewer than {SMALL} rows are in the JSON only)"
    yield _row("all", record["overall"])
    for name in ("second_hand", "distrusted", "incomplete"):
        if record[name]["rows"]:
            yield _row(f"apart: {name.replace('_', ' ')}", record[name])
    yield from _means(record["overall"])
    yield from _reasons(record)


def _row(name: str, made: dict[str, Any]) -> str:
    cells = (f"{_number(made[key], digits):>{width}}" for key, _, width, digits in COLUMNS)
    return f"{name[: NAME - 1]:<{NAME}}" + "".join(cells)


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _means(overall: dict[str, Any]) -> Iterator[str]:
    if overall["regret_pct"] is not None:
        yield f"regret of the mapping picked, mean over jobs: {overall['regret_pct']:.2f} %"
    if overall["mean_over_sources_pct"] is not None:
        yield (
            f"mean over {overall['sources_counted']} sources: {overall['mean_over_sources_pct']:.1f} %; "
            f"worst {overall['worst_source_pct']:.1f} % ({overall['worst_source'][:48]})"
        )
    if overall["experts_mean_pct"] is not None:
        yield f"models with experts: {overall['experts_mean_pct']:.1f} %"
    if overall["peak_mean_pct"] is not None:
        yield f"peak memory: {overall['peak_mean_pct']:.1f} % mean"
    for name, made in overall["subsets"].items():
        met = "met" if made["time_mean_pct"] <= made["aim_pct"] else "missed"
        yield f"  {name:<40}{made['time_mean_pct']:>6.1f} % of {made['rows']} rows; aim {made['aim_pct']} %, {met}"
    for name, made in overall["memory_groups"].items():
        met = "met" if made["within_pct"] >= made["aim_pct"] else "missed"
        yield (
            f"  {name:<28}{made['within_pct']:>6.1f} % of {made['rows']} rows within {made['within']}; "
            f"aim {made['aim_pct']} %, {met}"
        )


def _reasons(record: dict[str, Any]) -> Iterator[str]:
    if record["not_expressed"]:
        yield f"not expressed: {len(record['not_expressed'])}"
        for reason, count in Counter(row["reason"] for row in record["not_expressed"]).most_common():
            yield f"  {count:>4}  {reason[:92]}"
    if record["lint"]:
        yield f"lint: {len(record['lint'])}"
        for row in record["lint"]:
            yield f"  {row['kind']:<11}{row['id']:<16}{row['reason'][:70]}"


def rows(lines: Sequence[Line]) -> Iterator[str]:
    """Each row: seconds predicted and measured, error, whether it was said to fit, why it is apart."""
    yield f"{'id':<18}{'predicted s':>12}{'measured s':>12}{'error %':>9}  {'memory %':>9}  fit  note"
    for line in lines:
        times = ("", "", "") if line.seconds is None else _three(line.seconds)
        memory = line.allocated or line.peak
        share = f"{100 * (memory[0] / memory[1] - 1):+.1f}" if memory else ""
        fit = "" if line.fits is None else "ok" if line.fits[0] == line.fits[1] else "NO"
        note = line.why_not or line.apart
        yield f"{line.id:<18}{times[0]:>12}{times[1]:>12}{times[2]:>9}  {share:>9}  {fit:<3}  {note[:28]}".rstrip()


def _three(pair: tuple[float, float]) -> tuple[str, str, str]:
    predicted, measured = pair
    return f"{predicted:.4g}", f"{measured:.4g}", f"{100 * (predicted / measured - 1):+.1f}"


def assumptions(lines: Sequence[Line]) -> Iterator[str]:
    """Which profile priced which stack, and how often each default stood in for a blank cell."""
    stacks = Counter((dict(line.labels).get("stack", ""), line.stack) for line in lines if line.stack)
    yield "stack as published -> profile used"
    for (name, used), count in sorted(stacks.items()):
        yield f"  {count:>5}  {name or 'blank'} -> {used}"
    yield "assumed where cells are blank"
    for said, count in Counter(said for line in lines for said in line.assumed).most_common():
        yield f"  {count:>5}  {said[:92]}"
