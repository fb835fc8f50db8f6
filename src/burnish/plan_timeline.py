"""Timeline: one step of a pipeline as a picture, a row for each stage, with what follows it drawn to the same scale."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from burnish.chart import SIZE, picture, tick_labels
from burnish.document import keys, section
from burnish.markup import Html, el, join
from burnish.plan_schedule import BACKWARD, FORWARD, WEIGHT, Cell, Pipeline, Timeline, idle, shortened, timeline
from burnish.units import counted, show

GAP = 45.0  # width of a break, of SIZE
HIGH = 0.84  # share of a row that a pass fills
NUMBERED = 19.0  # width from which a pass carries its number
SEEN = 5e-4  # share of a step from which what follows the passes is wide enough to see
DENSE = 9.0  # width below which passes have no outline on a phone
LABELLED = 16  # stages labelled one by one
DRAWN = ("pipeline bubble", "recompute")  # causes that the rows show themselves; a sum of others is in their passes
TAIL = ("pipeline sends", "data", "optimizer")
SAID = {
    FORWARD: "forward",
    BACKWARD: "backward",
    WEIGHT: "gradients of weights",
    "pipeline sends": "sends between stages",
    "data": "data-parallel traffic that nothing hides",
    "optimizer": "optimizer",
}
NAMES = {"gpipe": "GPipe", "1f1b": "1F1B", "zero-bubble": "Zero bubble"}


def pipeline_of(drawn: Mapping[str, Any]) -> Pipeline:
    """The pipeline of a plan record."""
    return Pipeline(
        drawn["stages"],
        drawn["chunks"],
        drawn["micro_batches"],
        drawn["forward_seconds"],
        drawn["backward_seconds"],
        drawn["schedule"],
    )


def step_section(pick: Mapping[str, Any]) -> Html | None:
    """The timeline of the pick of a plan record; None where it has no passes."""
    pipeline = pipeline_of(pick["pipeline"])
    if pipeline.micro_batches < 1 or pipeline.forward + pipeline.backward <= 0:
        return None
    line = shortened(pipeline)
    tail = [(cause, pick["parts"][cause]) for cause in TAIL if pick["parts"].get(cause)]
    kinds = [FORWARD, BACKWARD, *([WEIGHT] if pipeline.weight else [])]
    seen = [cause for cause, seconds in tail if seconds >= SEEN * pick["seconds"]]
    legend = keys((f"fill {css(name)}", SAID[name]) for name in (*kinds, *seen))
    name = NAMES.get(pipeline.schedule, pipeline.schedule)
    if pipeline.stages == 1:
        name = "One stage"
    elif pipeline.chunks > 1:
        name += f", interleaved: {pipeline.chunks} chunks a stage, the first in full colour"
    each = f"{show(pipeline.forward, 'seconds')} forward and {show(pipeline.backward, 'seconds')} backward"
    note = f"Predicted. {name}. {counted(pipeline.micro_batches, 'micro batch', 'es')} of {each} on a stage."
    return section("One step", note, legend, drawing(pipeline, line, tail), said(pipeline, pick, len(line.cuts)))


def css(cause: str) -> str:
    """The class of a cause or a kind of bytes."""
    return "is-" + "".join(letter if letter.isalnum() else "-" for letter in cause.lower())


def percent(share: float) -> str:
    """A share of a whole to a tenth of a percent."""
    return f"{100 * share:.1f}\u00a0%"


def waited(pipeline: Pipeline) -> float:
    """Seconds in which each stage waits in a step."""
    most = min(pipeline.micro_batches, 2 * pipeline.stages)
    few = most - most % pipeline.stages if pipeline.chunks > 1 else most
    short = Pipeline(**{**vars(pipeline), "micro_batches": few or pipeline.micro_batches})
    return idle(timeline(short), 0)


def said(pipeline: Pipeline, pick: Mapping[str, Any], cuts: int) -> Html:
    """What the picture shows, in words."""
    wait, parts = waited(pipeline), pick["parts"]
    words = []
    if pipeline.stages > 1:
        passes = pipeline.micro_batches * (pipeline.forward + pipeline.backward)
        words.append(
            f"Each stage waits {show(wait, 'seconds')}, {percent(wait / (wait + passes))} of the pipeline's time: "
            f"blank in its row."
        )
        priced = parts.get("pipeline bubble", 0.0)
        if abs(priced - wait) > 0.005 * wait:
            words.append(
                f"All stages are drawn as slow as the slowest. The price knows that they differ and counts "
                f"{show(priced, 'seconds')}, so that the picture ends {show(abs(priced - wait), 'seconds')} "
                f"{'after' if wait > priced else 'before'} the predicted step."
            )
    if cuts:
        words.append("Between the broken lines the stages repeat what stands before them; that time is left out.")
    if parts.get("pipeline sends"):
        words.append("Sends happen between passes; their sum is drawn behind them.")
    return el("p", " ".join(words), cls="caption")


def drawing(pipeline: Pipeline, line: Timeline, tail: Sequence[tuple[str, float]]) -> Html:
    """The picture: rows of passes, breaks, and what follows over all rows."""
    total = line.seconds + sum(seconds for _, seconds in tail)
    x = scale(line.cuts, total)
    row = SIZE / pipeline.stages
    shapes = [
        el("path", d=rectangles(cells, x, row), cls=css(kind), fill_opacity=f"{1 - 0.62 * chunk / pipeline.chunks:.2f}")
        for (kind, chunk), cells in grouped(line.cells).items()
    ]
    start = line.seconds
    for cause, seconds in tail:
        shapes.append(
            el("path", d=f"M{x(start):.2f} 0H{x(start + seconds):.2f}V{SIZE:g}H{x(start):.2f}Z", cls=css(cause))
        )
        start += seconds
    for low, high in line.cuts:
        sides = f"M{x(low):.1f} 0V{SIZE:g}M{x(high):.1f} 0V{SIZE:g}"
        shapes.append(el("path", d=sides, cls="break", vector_effect="non-scaling-stroke"))
    svg = picture("Timeline of one step, predicted", described(pipeline, tail, total), *shapes)
    every = -(-pipeline.stages // LABELLED)
    rows = range(0, pipeline.stages, every)
    labels = tick_labels("y", rows, [(stage + HIGH / 2) * row for stage in rows])
    labels += [*numbers(pipeline, line, x, row), *times(line, x, total)]
    narrow = min(x(cell.end) - x(cell.start) for cell in line.cells) < DENSE
    kind = "plot pipeline dense" if narrow else "plot pipeline"
    plot = el("div", svg, *labels, cls=kind, style=f"--rows:{pipeline.stages}")
    return join(el("div", "stage", cls="axis"), plot)


def scale(cuts: Sequence[tuple[float, float]], total: float) -> Callable[[float], float]:
    """Seconds of a step to 0..SIZE, every cut narrowed to the same break."""
    left = sum(high - low for low, high in cuts)
    unit = (SIZE - GAP * len(cuts)) / (total - left)

    def place(time: float) -> float:
        passed = 0.0
        for low, high in cuts:
            if time >= high:
                passed += GAP - unit * (high - low)
            elif time > low:
                return unit * low + passed + GAP * (time - low) / (high - low)
        return unit * time + passed

    return place


def grouped(cells: Sequence[Cell]) -> dict[tuple[str, int], list[Cell]]:
    """Passes by kind and chunk."""
    found: dict[tuple[str, int], list[Cell]] = {}
    for cell in cells:
        found.setdefault((cell.kind, cell.chunk), []).append(cell)
    return found


def rectangles(cells: Sequence[Cell], x: Callable[[float], float], row: float) -> str:
    """One path with a rectangle for each pass."""
    spans = [(x(cell.start), x(cell.end), cell.stage * row) for cell in cells]
    return "".join(f"M{a:.1f} {y:.1f}h{b - a:.1f}v{HIGH * row:.1f}h{a - b:.1f}z" for a, b, y in spans)


def numbers(pipeline: Pipeline, line: Timeline, x: Callable[[float], float], row: float) -> list[Html]:
    """Numbers of micro batches in passes that are wide enough, where a stage has no chunks."""
    if pipeline.chunks > 1 or pipeline.stages > LABELLED:
        return []
    found = []
    for cell in line.cells:
        left, right = x(cell.start), x(cell.end)
        broken = any(cell.start < edge < cell.end for cut in line.cuts for edge in cut)
        number = str(cell.micro_batch + 1)
        if right - left >= NUMBERED * max(1, len(number) / 2) and not broken:
            place = f"left:{(left + right) / 2 / SIZE:.2%};top:{(cell.stage + HIGH / 2) * row / SIZE:.2%}"
            found.append(el("span", number, cls="number", style=place, aria_hidden="true"))
    return found


def times(line: Timeline, x: Callable[[float], float], total: float) -> list[Html]:
    """Times below the picture: its ends, and how much each break leaves out."""
    found = [(0.0, "0", "")]
    found += [(x((low + high) / 2), f"{show(high - low, 'seconds')} left out", " cut") for low, high in line.cuts]
    found += [(SIZE, show(total, "seconds"), " end")]
    return [el("span", words, cls=f"tick x{cls}", style=f"left:{at / SIZE:.2%}") for at, words, cls in found]


def described(pipeline: Pipeline, tail: Sequence[tuple[str, float]], total: float) -> str:
    """The picture for a reader who does not see it."""
    wait, busy = waited(pipeline), pipeline.micro_batches * (pipeline.forward + pipeline.backward)
    words = f"{counted(pipeline.stages, 'stage')}, {counted(pipeline.micro_batches, 'micro batch', 'es')}. "
    words += f"Each stage works {show(busy, 'seconds')} and waits {show(wait, 'seconds')}. "
    words += "".join(f"Then {SAID[cause]}: {show(seconds, 'seconds')}. " for cause, seconds in tail)
    return f"{words}In all {show(total, 'seconds')}."
