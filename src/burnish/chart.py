"""The loss curve as a picture that fits any width: lines in a stretched SVG, ticks as text beside it.

Coordinates inside the SVG run from 0 to SIZE on both axes and strokes do not scale with it, so that one picture serves
a wide screen and a phone while the letters keep their size.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from itertools import accumulate

from burnish.markup import Html, el, join
from burnish.reported import Report

LIMIT = 400  # points drawn per line; more are invisible at any width a page has
SIZE = 1000.0

Point = tuple[float, float]


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round values in [low, high], as near to `count` of them as steps of 1, 2 or 5 times a power of ten allow."""
    if not high > low:
        return [low]
    power = 10.0 ** math.floor(math.log10((high - low) / count))
    choices = []
    for step in (power, 2 * power, 5 * power, 10 * power):
        first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
        choices.append([round(k * step, 12) for k in range(first, last + 1)])
    return min(choices, key=lambda values: abs(len(values) - count))


def downsample(points: Sequence[Point], limit: int = LIMIT) -> list[Point]:
    """At most `limit` points of the same shape to the eye: largest-triangle-three-buckets (Steinarsson 2013, ch. 4.2).

    First and last point are kept; of each bucket between them the point that spans the largest triangle stays, so that
    a spike of one step survives.
    """
    if len(points) <= limit:
        return list(points)
    size = (len(points) - 2) / (limit - 2)
    edges = [1 + round(k * size) for k in range(limit - 1)]
    kept = [points[0]]
    for k in range(limit - 2):
        following = points[edges[k + 1] : edges[k + 2]] if k + 2 < len(edges) else points[-1:]
        mean_x = sum(x for x, _ in following) / len(following)
        mean_y = sum(y for _, y in following) / len(following)
        x0, y0 = kept[-1]
        bucket = points[edges[k] : edges[k + 1]]
        kept.append(max(bucket, key=lambda p: abs((x0 - mean_x) * (p[1] - y0) - (x0 - p[0]) * (mean_y - y0))))
    return [*kept, points[-1]]


def smooth(points: Sequence[Point], half: int) -> list[Point]:
    """Mean over a window of up to `half` points on either side, always symmetric, so that no slope is delayed."""
    sums = [0.0, *accumulate(y for _, y in points)]
    out = []
    for k, (x, _) in enumerate(points):
        reach = min(half, k, len(points) - 1 - k)
        out.append((x, (sums[k + reach + 1] - sums[k - reach]) / (2 * reach + 1)))
    return out


def loss_chart(report: Report) -> Html | None:
    """Training and held-out loss over steps; None when no finite loss was recorded."""
    train = [(float(s.step), s.loss) for s in report.curve if math.isfinite(s.loss)]
    held = [(float(s.step), s.loss) for s in report.evals if math.isfinite(s.loss)]
    if not train and not held:
        return None
    (left, right), (low, high) = _ranges([*train, *held])
    x_ticks, y_ticks = ticks(left, right, 5), enclosing(ticks(low, high, 5), low, high)
    low, high = y_ticks[0], y_ticks[-1]

    def place(points: Sequence[Point]) -> list[Point]:
        return [(SIZE * (x - left) / (right - left), SIZE * (high - y) / (high - low)) for x, y in points]

    grid = "".join(f"M0 {y:.1f}H{SIZE:g}" for _, y in place([(left, v) for v in y_ticks]))
    smoothed = smooth(train, len(train) // 50)
    lines = [line(grid, "grid"), line(path(place(downsample(train))), "raw")]
    lines.append(line(path(place(downsample(smoothed))), "train"))
    lines.append(line(path(place(downsample(held))), "held"))
    lines.append(line("".join(f"M{x:.1f} {y:.1f}h0" for x, y in place(downsample(held, 60))), "held dots"))
    svg = picture("Loss over training steps", _described(train, held), *lines)
    labels = tick_labels("y", y_ticks, [y for _, y in place([(left, v) for v in y_ticks])])
    labels += tick_labels("x", x_ticks, [x for x, _ in place([(v, low) for v in x_ticks])])
    shown = [[round(px, 1), round(py, 1), s[0], round(s[1], 4)] for s, (px, py) in _paired(downsample(smoothed), place)]
    plot = el("div", svg, *labels, cls="plot", data_points=json.dumps(shown, separators=(",", ":")))
    return join(el("div", f"loss, {report.units.loss}", cls="axis"), plot, el("div", "step", cls="axis right"))


def _paired(points: Sequence[Point], place: Callable[[Sequence[Point]], list[Point]]) -> list[tuple[Point, Point]]:
    return list(zip(points, place(points), strict=True))


def _ranges(points: Sequence[Point]) -> tuple[tuple[float, float], tuple[float, float]]:
    """Bounds of both axes; values that hardly differ get some room on either side."""
    xs, ys = [x for x, _ in points], [y for _, y in points]
    left, right, low, high = min(xs), max(xs), min(ys), max(ys)
    if right == left:
        left, right = left - 1, right + 1
    margin = 0.0 if high - low > 1e-6 * max(1.0, abs(high)) else 0.5
    return (left, right), (low - margin, high + margin)


def picture(title: str, description: str, *shapes: Html | None) -> Html:
    """Shapes in coordinates from 0 to SIZE, stretched to their place, with words for who does not see them."""
    return el(
        "svg",
        el("title", title),
        el("desc", description),
        *shapes,
        viewBox=f"0 0 {SIZE:g} {SIZE:g}",
        preserveAspectRatio="none",
        role="img",
    )


def enclosing(values: list[float], low: float, high: float) -> list[float]:
    """Ticks with one more on either side where the range goes on beyond them, so that every point lies between two."""
    step = values[1] - values[0] if len(values) > 1 else max(high - low, 1e-9)
    first, last = values[0], values[-1]
    below = [round(first - step, 12)] if first - low > 1e-9 * step else []
    above = [round(last + step, 12)] if high - last > 1e-9 * step else []
    return [*below, *values, *above]


def path(points: Sequence[Point]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points) if points else ""


def line(path: str, cls: str) -> Html | None:
    return el("path", d=path, cls=cls, vector_effect="non-scaling-stroke") if path else None


def tick_labels(axis: str, values: Sequence[float], positions: Sequence[float]) -> list[Html]:
    """Tick labels at `positions` (0..SIZE) of an axis, with as many decimals as the values need to differ.

    Every second one is marked minor (a phone leaves it out), and one at the right edge is marked to stay inside.
    """
    step = abs(values[1] - values[0]) if len(values) > 1 else abs(values[0]) or 1.0
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    side = "top" if axis == "y" else "left"
    labels = []
    for k, (value, position) in enumerate(zip(values, positions, strict=True)):
        minor = " minor" if len(values) > 4 and (len(values) - 1 - k) % 2 else ""
        end = " end" if axis == "x" and position > 0.95 * SIZE else ""
        style = f"{side}:{position / SIZE:.2%}"
        labels.append(el("span", f"{value:,.{decimals}f}", cls=f"tick {axis}{minor}{end}", style=style))
    return labels


def _described(train: Sequence[Point], held: Sequence[Point]) -> str:
    """The curve in words, for a reader who does not see it."""
    said = []
    for name, points in (("Training", train), ("Held-out", held)):
        if points:
            (x0, y0), (x1, y1) = points[0], points[-1]
            said.append(f"{name} loss went from {y0:.3f} at step {x0:,.0f} to {y1:.3f} at step {x1:,.0f}.")
    return " ".join(said)
