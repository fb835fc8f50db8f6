"""Pareto set of a plan: the mappings that no other beats in time and memory at once, as a small chart and as numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from burnish.chart import SIZE, Point, enclosing, line, path, picture, tick_labels, ticks
from burnish.document import keys, section, table
from burnish.markup import Html, el, join
from burnish.units import counted, show

SLOWEST = 2.0  # times the pick: what is slower is told of, not drawn
LISTED = 24


def pareto_section(plan: Mapping[str, Any]) -> Html | None:
    """Time against memory; None for a plan with fewer than two such mappings."""
    pick, points = plan["pick"], plan["pareto"]
    if pick is None or len(points) < 2:
        return None
    shown = [point for point in points if point["seconds"] <= SLOWEST * pick["seconds"]]
    left = len(points) - len(shown)
    note = "Predicted. Each point is a mapping that no other beats in time, memory and GPUs together; lower left is better."
    if left:
        note += f" {counted(left, 'mapping')} slower than {SLOWEST:g} times the pick {'is' if left == 1 else 'are'} not drawn."
    legend = keys([("fill set", "not beaten"), ("fill pick", "the pick")])
    chart = chart_of(shown, pick)
    return section("Time against memory", note, legend, chart, listed(shown))


def chart_of(shown: Sequence[Mapping[str, Any]], pick: Mapping[str, Any]) -> Html:
    """The points joined by steps: what lies above and right of the line is beaten."""
    points = sorted((point["memory_gib"], point["seconds"]) for point in shown)
    own = (pick["memory_gib"], pick["seconds"])
    xs, ys = [x for x, _ in (*points, own)], [y for _, y in (*points, own)]
    x_ticks = enclosing(ticks(min(xs), max(xs), 5), min(xs), max(xs))
    y_ticks = enclosing(ticks(min(ys), max(ys), 4), min(ys), max(ys))
    if len(x_ticks) < 2 or len(y_ticks) < 2:
        x_ticks, y_ticks = [x_ticks[0], x_ticks[0] + 1.0], [y_ticks[0], y_ticks[0] + 1.0]
    (left, right), (low, high) = (x_ticks[0], x_ticks[-1]), (y_ticks[0], y_ticks[-1])

    def place(values: Sequence[Point]) -> list[Point]:
        return [(SIZE * (x - left) / (right - left), SIZE * (high - y) / (high - low)) for x, y in values]

    steps = [corner for a, b in pairwise(points) for corner in (a, (b[0], a[1]))]
    grid = "".join(f"M0 {y:.1f}H{SIZE:g}" for _, y in place([(left, value) for value in y_ticks]))
    svg = picture(
        "Time of a step against memory of the fullest GPU, predicted",
        described(points, own),
        line(grid, "grid"),
        line(path(place([*steps, points[-1]])), "border"),
        line("".join(f"M{x:.1f} {y:.1f}h0" for x, y in place(points)), "set dots"),
        line("".join(f"M{x:.1f} {y:.1f}h0" for x, y in place([own])), "pick dots"),
    )
    labels = tick_labels("y", y_ticks, [y for _, y in place([(left, value) for value in y_ticks])])
    labels += tick_labels("x", x_ticks, [x for x, _ in place([(value, low) for value in x_ticks])])
    plot = el("div", svg, *labels, cls="plot pareto")
    return join(el("div", "seconds a step", cls="axis"), plot, el("div", "GiB on the fullest GPU", cls="axis right"))


def described(points: Sequence[Point], own: Point) -> str:
    """The chart for a reader who does not see it."""
    fastest, leanest = min(points, key=lambda point: point[1]), points[0]
    said = [f"{show(seconds, 'seconds')} with {memory:.1f} GiB" for memory, seconds in (fastest, leanest, own)]
    return f"From {said[0]} to {said[1]}. The pick takes {said[2]}."


def listed(shown: Sequence[Mapping[str, Any]]) -> Html:
    """The points as numbers, the first of them where they are many."""
    several = len({point["gpus"] for point in shown}) > 1
    rows = [
        [
            point["words"],
            show(point["seconds"], "seconds"),
            f"{point['memory_gib']:.1f}",
            *([f"{point['gpus']:,}"] if several else []),
        ]
        for point in shown[:LISTED]
    ]
    title = "These mappings as numbers" + (f", {len(rows)} of {len(shown)}" if len(rows) < len(shown) else "")
    return el(
        "details",
        el("summary", title),
        table(["mapping", "a step", "GiB", *(["GPUs"] if several else [])], rows, "ranked"),
    )
