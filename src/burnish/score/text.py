"""Score text: the record of a score as lines for a terminal of a hundred columns."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from burnish.score.lines import Line

NAME = 36
WIDE = 100
ID = 18
NOTE = 28
STEPS = ((1e3, "k"), (1e6, "M"), (1e9, "G"), (1e12, "T"), (1e15, "P"))
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
    for name, made in zip(named(list(shown), NAME - 1), shown.values(), strict=True):
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
    cells = (f"{_number(made[key], digits, width - 1):>{width}}" for key, _, width, digits in COLUMNS)
    return f"{name:<{NAME}}" + "".join(cells)


def _number(value: float | None, digits: int, width: int) -> str:
    """A number of at most so many letters: with fewer digits, or in thousands, millions and so on."""
    if value is None:
        return "-"
    steps = ((f"{value:.{places}f}" for places in range(digits, -1, -1)), (f"{value / s:.0f}{u}" for s, u in STEPS))
    fitting = (text for texts in steps for text in texts if len(text) <= width)
    return next(fitting, f"{value:.0e}".replace("e+", "e"))


def named(names: Sequence[str], width: int) -> list[str]:
    """Names cut in the middle, or elsewhere where two would read alike; where nothing helps they are numbered."""
    made: dict[str, None] = {}
    for number, name in enumerate(names, 1):
        cuts = (middle(name, width, front) for front in ((width - 3) // 2, *range(width - 3, 0, -1)))
        told = next((text for text in cuts if text not in made), "")
        mark = f" #{number}"
        made[told or middle(name, width - len(mark)) + mark] = None
    return list(made)


def middle(name: str, width: int, front: int = 0) -> str:
    """A name of at most so many letters, with dots for what is left out behind its first `front` (0 = half of them)."""
    if len(name) <= width:
        return name
    front = front or (width - 3) // 2
    return f"{name[:front]}...{name[len(name) - (width - 3 - front) :]}"


def _wrapped(head: str, reason: str) -> Iterator[str]:
    """A reason behind a head, on as many lines as it needs."""
    yield from textwrap.wrap(reason, WIDE, initial_indent=head, subsequent_indent=" " * len(head)) or [head.rstrip()]


def _cut(text: str, width: int) -> str:
    """The words of a text that fit, with dots where some did not."""
    return (
        text
        if len(text) <= width
        else textwrap.shorten(text, width, placeholder="...").lstrip(".") or middle(text, width)
    )


def _means(overall: dict[str, Any]) -> Iterator[str]:
    if overall["regret_pct"] is not None:
        yield f"regret of the mapping picked, mean over jobs: {overall['regret_pct']:.2f} %"
    if overall["mean_over_sources_pct"] is not None:
        yield (
            f"mean over {overall['sources_counted']} sources: {overall['mean_over_sources_pct']:.1f} %; "
            f"worst {overall['worst_source_pct']:.1f} % ({middle(overall['worst_source'], 48)})"
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
            yield from _wrapped(f"  {count:>4}  ", reason)
    if record["lint"]:
        yield f"lint: {len(record['lint'])}"
        for row in record["lint"]:
            yield from _wrapped(f"  {row['kind']:<11}{middle(row['id'], 27):<15} ", row["reason"])


def rows(lines: Sequence[Line]) -> Iterator[str]:
    """Each row: seconds predicted and measured, error, whether it was said to fit, why it is apart."""
    yield f"{'id':<{ID}}{'predicted s':>12}{'measured s':>12}{'error %':>9}  {'memory %':>9}  fit  note"
    for line in lines:
        times = ("", "", "") if line.seconds is None else _three(line.seconds)
        memory = line.allocated or line.peak
        share = _share(memory) if memory else ""
        fit = "" if line.fits is None else "ok" if line.fits[0] == line.fits[1] else "NO"
        note = line.why_not or line.apart
        name = middle(line.id, ID - 1)
        yield (
            f"{name:<{ID}}{times[0]:>12}{times[1]:>12}{times[2]:>9}  {share:>9}  {fit:<3}  {_cut(note, NOTE)}".rstrip()
        )


def _three(pair: tuple[float, float]) -> tuple[str, str, str]:
    predicted, measured = pair
    return f"{predicted:.4g}", f"{measured:.4g}", _share(pair)


def _share(pair: tuple[float, float]) -> str:
    off = 100 * (pair[0] / pair[1] - 1)
    return ("+" if off >= 0 else "") + _number(off, 1, 7)


def assumptions(lines: Sequence[Line]) -> Iterator[str]:
    """Which profile priced which stack, and how often each default stood in for a blank cell."""
    stacks = Counter((dict(line.labels).get("stack", ""), line.stack) for line in lines if line.stack)
    yield "stack as published -> profile used"
    for (name, used), count in sorted(stacks.items()):
        yield f"  {count:>5}  {middle(name, 60) or 'blank'} -> {used}"
    yield "assumed where cells are blank"
    for said, count in Counter(said for line in lines for said in line.assumed).most_common():
        yield from _wrapped(f"  {count:>5}  ", said)
