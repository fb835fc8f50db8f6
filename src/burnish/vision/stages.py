"""Stages: the networks of a run side by side, with what each scores and costs."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from burnish.records import Table
from burnish.units import MISSING, show
from burnish.vision.inference import Labeller
from burnish.vision.task import Scored

RUNS = 15  # that a latency is the median of
COSTS = ("parameters", "FLOPs a window", "file", "ms a window, median (least)", "steps")


@dataclass(frozen=True)
class Stage:
    """One row of the report: a network, how it was made, and what it scores."""

    key: str
    name: str
    scores: Scored
    parameters: int | None
    flops: float | None
    file_bytes: int | None
    seconds: tuple[float, float]  # median, least
    steps: int | None


def latency(labeller: Labeller) -> tuple[float, float]:
    """Median and least seconds of one window."""
    shape = (1, labeller.network.in_channels, *labeller.images.patch)  # type: ignore[misc]
    window = np.random.default_rng(0).random(shape, np.float32)
    return timed(lambda: labeller.predict(window))


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """Median and least seconds of a few runs after one that warms up."""
    work()
    found = []
    for _ in range(RUNS):
        began = time.perf_counter()
        work()
        found.append(time.perf_counter() - began)
    return statistics.median(found), min(found)


def table_of(stages: Sequence[Stage], where: str) -> Table:
    """The stages side by side."""
    rows = []
    for one in stages:
        median, least = (f"{1000 * seconds:.2f}" for seconds in one.seconds)
        rows.append(
            (
                one.name,
                *one.scores.shown.values(),
                MISSING if one.parameters is None else f"{one.parameters:,}",
                MISSING if one.flops is None else show(one.flops, "FLOPs"),
                MISSING if one.file_bytes is None else show(one.file_bytes, "bytes"),
                f"{median} ({least})",
                MISSING if one.steps is None else f"{one.steps:,}",
            )
        )
    heads = ("step", *stages[0].scores.shown, *COSTS)
    return Table(title="Steps", heads=heads, rows=tuple(rows), note=f"Judged on {where}.")


def classes_table(stages: Sequence[Stage], metric: str) -> Table | None:
    """The score of each class, where there are several."""
    names = list(stages[0].scores.classes)
    if len(names) < 2:
        return None
    rows = tuple((one.name, *(f"{one.scores.classes[name]:.4f}" for name in names)) for one in stages)
    return Table(title="Classes", heads=(metric, *names), rows=rows)


# A step's key -> the key of what it was made from, or is held against, and what that step did.
LOSSES = {
    "cut": ("trained", "channels cut, no training on"),
    "reestimated": ("trained", "... normalisation measured again"),
    "pruned": ("control", "pruned and trained on, against the whole network trained on as long"),
    "trained.onnx": ("trained", "ONNX, of the trained network"),
    "trained.int8": ("trained", "8 bits, of the trained network"),
    "pruned.onnx": ("pruned", "ONNX, of the pruned network"),
    "pruned.int8": ("pruned", "8 bits, of the pruned network"),
}


def losses_table(stages: Sequence[Stage]) -> Table | None:
    """What each step lost of every number that a network scores; less than nothing is a gain."""
    known = {one.key: one.scores for one in stages}
    rows = []
    for key, (against, name) in LOSSES.items():
        if key in known and against in known:
            ours, theirs = known[key].named, known[against].named
            rows.append((name, against, *(f"{theirs[number] - ours[number]:+.4f}" for number in ours)))
    if not rows:
        return None
    heads = ("step", "against", *known["trained"].named)
    return Table(title="Losses", heads=heads, rows=tuple(rows), note="What each step lost; below nothing is a gain.")
