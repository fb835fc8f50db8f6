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
from burnish.vision.metric import Scores

RUNS = 15  # that a latency is the median of
HEADS = ("step", "Dice", "HD95", "parameters", "FLOPs a window", "file", "ms a window, median (least)", "steps")


@dataclass(frozen=True)
class Stage:
    """One row of the report: a network, how it was made, and what it scores."""

    key: str
    name: str
    scores: Scores
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
        apart = f"{np.mean(list(one.scores.hd95.values())):.1f} mm" if one.scores.hd95 else MISSING
        median, least = (f"{1000 * seconds:.2f}" for seconds in one.seconds)
        rows.append(
            (
                one.name,
                f"{one.scores.mean:.4f}",
                apart,
                MISSING if one.parameters is None else f"{one.parameters:,}",
                MISSING if one.flops is None else show(one.flops, "FLOPs"),
                MISSING if one.file_bytes is None else show(one.file_bytes, "bytes"),
                f"{median} ({least})",
                MISSING if one.steps is None else f"{one.steps:,}",
            )
        )
    return Table(title="Steps", heads=HEADS, rows=tuple(rows), note=f"Judged on {where}.")


def classes_table(stages: Sequence[Stage]) -> Table | None:
    """Dice of each class, where there are several."""
    names = list(stages[0].scores.dice)
    if len(names) < 2:
        return None
    rows = tuple((one.name, *(f"{one.scores.dice[name]:.4f}" for name in names)) for one in stages)
    return Table(title="Classes", heads=("Dice", *names), rows=rows)
