"""Fit the memory numbers of a stack to published runs that fitted or ran out of memory: bench/results/fit_memory.json.

Each number starts from what the stack's code is known to keep and is pulled back to it; a run counts by how far its peak
is from the chip's memory, in log. With `--halves` it also fits on half of the jobs and judges the other half. The numbers
it prints stand in src/burnish/tables/stacks.toml.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from burnish.columns import columns
from burnish.memory import sizes_of, stage_memory
from burnish.rows import read_rows
from burnish.rows.training import Row
from record import record

WIDTH = 0.02  # log distance from the chip's memory at which a verdict is nearly certain
PULL = 0.02  # weight of a number's distance from where it starts, in its own spreads
STEPS = 1500


class Number(NamedTuple):
    """A number of the stack: where it starts, how far it may go (log standard deviation), and why it starts there."""

    start: float
    spread: float
    why: str


# Hagemann et al. 2023 (arXiv 2311.05610): an eager LLaMA with FlashAttention or stored scores.
NUMBERS = {
    "norm_copies": Number(6.0, 0.3, "RMSNorm in float32 keeps its input and its normal form for each 16-bit element"),
    "token_copies": Number(2.0, 0.5, "one 16-bit copy of a layer's tokens"),
    "act_copies": Number(1.0, 0.3, "the activation's result beside gate and product: 2 bytes a pair"),
    "score_bytes": Number(7.0, 0.3, "16-bit scores and probabilities, and float32 copies of some"),
    "fused_score_bytes": Number(6.0, 0.3, "16-bit scores and probabilities, and their mask"),
    "logits_bytes": Number(16.0, 0.3, "16-bit logits, float32 logits, probabilities and gradients, whole on each rank"),
    "base_gib": Number(2.0, 0.5, "context, workspaces and communication buffers"),
    "reserve": Number(0.1, 0.5, "the allocator's pieces, share of activations"),
}
ONLY_UNFUSED = {"norm_copies"}


class Table(NamedTuple):
    """Rows of one stack as arrays."""

    rows: Sequence[Row]
    fits: np.ndarray
    capacity: np.ndarray


def read(path: str, stack: str) -> Table:
    """The rows of a stack whose outcome is known."""
    rows = [row for row in read_rows(path) if row.setting is not None and row.setting.stack_name == stack]
    settings = [row.setting for row in rows if row.setting is not None]
    return Table(
        rows,
        np.array([row.measured.outcome == "ok" for row in rows]),
        np.array([setting.cluster.chip.memory for setting in settings]),
    )


def predictor(table: Table) -> Callable[[dict[str, float]], np.ndarray]:
    """A function from numbers to the peak of each row."""
    settings = [row.setting for row in table.rows if row.setting is not None]
    model, mapping = columns([s.job.model for s in settings]), columns([s.mapping for s in settings])
    shape = np.array([(s.job.seq, s.job.global_batch) for s in settings]).T
    balanced = np.array([s.stack.balanced for s in settings])

    def peak(numbers: dict[str, float]) -> np.ndarray:
        made = []
        cache: dict[Any, Any] = {}
        for s in settings:
            key = (s.stack.fused_norm, s.job.attention)
            if key not in cache:
                kept: dict[str, Any] = {
                    k: v for k, v in numbers.items() if not (s.stack.fused_norm and k in ONLY_UNFUSED)
                }
                cache[key] = sizes_of(s.job, replace(s.stack, **kept), s.cluster.chip)
            made.append(cache[key])
        held = stage_memory(model, (shape[0], shape[1]), mapping, columns(made), balanced)
        return np.asarray(sum(held.values())).max(axis=0)

    return peak


def numbers_at(place: np.ndarray) -> dict[str, float]:
    """The numbers at a place, which counts spreads from the start."""
    return {name: n.start * float(np.exp(n.spread * x)) for (name, n), x in zip(NUMBERS.items(), place, strict=True)}


def loss(place: np.ndarray, peak: Callable[[dict[str, float]], np.ndarray], table: Table, chosen: np.ndarray) -> float:
    """Mean surprise at the outcomes of chosen rows, with the pull to the start."""
    distance = np.log(peak(numbers_at(place)) / table.capacity) / WIDTH
    wrong = np.where(table.fits, distance, -distance)[chosen]
    return float(np.logaddexp(0, wrong).mean() + PULL * np.square(place).mean() * len(place))


def fitted(table: Table, chosen: np.ndarray, steps: int = STEPS) -> dict[str, float]:
    """Numbers by a random search that narrows as it stops finding better places."""
    random, peak = np.random.default_rng(0), predictor(table)
    place, width = np.zeros(len(NUMBERS)), 0.5
    best = loss(place, peak, table, chosen)
    for _ in range(steps):
        move = np.zeros(len(place))
        some = random.choice(len(place), random.integers(1, 4), replace=False)
        move[some] = random.normal(size=len(some)) * width
        here = loss(place + move, peak, table, chosen)
        if here < best:
            best, place, width = here, place + move, min(width * 1.2, 1.5)
        else:
            width = max(width * 0.985, 0.03)
    return numbers_at(place)


def right(table: Table, numbers: dict[str, float]) -> np.ndarray:
    """Whether the verdict on each row is right."""
    return (predictor(table)(numbers) <= table.capacity) == table.fits


def halves(table: Table) -> dict[str, np.ndarray]:
    """Halves of the jobs: by model, and by length."""
    settings = [row.setting for row in table.rows if row.setting is not None]
    width, length = (
        np.array([int(value) for value in values])
        for values in ([s.job.model.hidden for s in settings], [s.job.seq for s in settings])
    )
    made: dict[str, np.ndarray] = {}
    for name, values in (("model", width), ("length", length)):
        made |= {f"small {name}": values == values.min(), f"large {name}": values != values.min()}
    return made


def main() -> None:
    """Fit, judge, record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", help="training rows with an outcome")
    parser.add_argument("--stack", default="aleph-3d-2023")
    parser.add_argument("--halves", action="store_true")
    args = parser.parse_args()
    table = read(args.rows, args.stack)
    numbers = fitted(table, np.arange(len(table.rows)))
    values: dict[str, Any] = {f"{args.stack}.{name}": round(value, 4) for name, value in numbers.items()}
    values |= {"rows": len(table.rows), "right_percent": round(100 * float(right(table, numbers).mean()), 2)}
    if args.halves:
        for name, half in halves(table).items():
            other = right(table, fitted(table, np.flatnonzero(half)))[~half]
            values[f"right_percent_other_than_{name.replace(' ', '_')}"] = round(100 * float(other.mean()), 2)
    for name, value in values.items():
        print(f"{name} = {value}" + (f"  # {NUMBERS[name.split('.')[-1]].why}" if "." in name else ""))
    print(record("fit_memory", values))


if __name__ == "__main__":
    main()
