"""Fit the rates of chips, links and stacks to published step times, and write them with their provenance.

    bench/fit_hardware.py ROWS.csv            fit to all first-hand, trusted rows and write src/burnish/tables/rates.toml
    bench/fit_hardware.py ROWS.csv --folds    five times leave out whole sources, fit to the others, print the error there;
                                              then the same with all runs of a model on a chip left out together

Each constant has a prior (what data sheets and papers suggest) and a spread (how far in logarithms a fit may carry it at
the cost of one standard deviation). The fit is the posterior mode: Huber loss on the logarithm of predicted over
measured, each source weighted by the square root of its rows, by Levenberg and Marquardt's method from several starts.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from burnish import price, step_time
from burnish.columns import columns
from burnish.rates import Constant, Rates, constants, rates
from burnish.records import write_text
from burnish.rows import Row, read_rows
from burnish.rows.lint import impossible, lint
from record import record

TABLE = Path(__file__).parents[1] / "src" / "burnish" / "tables" / "rates.toml"
NOISE = 0.05  # standard deviation of the logarithm of one measurement: what repeated runs of one recipe differ by
HUBER = 1.0  # standard deviations beyond which an error counts linearly
POWER = 0.78  # a source of n rows weighs n to this power
EFFECTIVE = 400  # rows the weights add up to: rows of one source are not independent
STARTS = 3
FOLDS = 5


def trusted(every: list[Row]) -> list[Row]:
    """First-hand rows with a step time that neither the table of distrusted rows nor the lint sets apart."""
    refuted = impossible(lint(every))
    timed = [row for row in every if row.setting is not None and row.measured.seconds]
    return [row for row in timed if not (row.second_hand or row.distrusted or row.id in refuted)]


class Published:
    """Rows laid out once, to be priced under many sets of constants."""

    def __init__(self, rows: list[Row]) -> None:
        self.rows = rows
        self.measured = np.array([row.measured.seconds for row in rows])
        self.sources = np.array([row.source for row in rows])
        settings = [row.setting for row in rows]
        self.groups = [Group([settings[k] for k in members], np.array(members)) for members in price.alike(settings)]

    def log_ratio(self, values: dict[str, float]) -> np.ndarray:
        """Logarithm of predicted over measured seconds."""
        seconds = np.empty(len(self.rows))
        for group in self.groups:
            seconds[group.members] = group.seconds(values)
        return np.log(seconds / self.measured)

    def part(self, keep: np.ndarray) -> Published:
        """The rows where `keep` holds."""
        return Published([row for row, kept in zip(self.rows, keep, strict=True) if kept])


class Group:
    """Rows that are described together; rates are made once for each distinct machine, stack and kind of job."""

    def __init__(self, settings: list[Any], members: np.ndarray) -> None:
        self.members = members
        self.mapping = columns([s.mapping for s in settings])
        self.stack = columns([s.stack for s in settings])
        self.work, self.staged = price.laid_out(settings)
        kinds: dict[Any, int] = {}
        self.kind = np.array([kinds.setdefault(_kind(s), len(kinds)) for s in settings])
        self.examples = [settings[int(np.argmax(self.kind == k))] for k in range(len(kinds))]

    def seconds(self, values: dict[str, float]) -> np.ndarray:
        """Predicted seconds of a step."""
        few = columns([rates(s.job, s.cluster, s.stack, values) for s in self.examples])
        each = Rates(**{f.name: getattr(few, f.name)[self.kind] for f in fields(few)})
        return step_time.step(self.work, self.staged, self.mapping, each, self.stack).seconds


def _kind(setting: Any) -> tuple[Any, ...]:
    job, cluster = setting.job, setting.cluster
    chip = (cluster.chip.name, tuple(cluster.chip.flops.items()), cluster.domain, cluster.per_node)
    links = (cluster.link, cluster.network)
    return job.precision, job.attention, job.trained, job.lora_rank > 0, job.optimizer, chip, links, setting.stack


@dataclass(frozen=True)
class Scale:
    """The fitted constants as one vector: logarithms, or log odds of shares, which stay between 0 and 1."""

    table: dict[str, Constant]

    @property
    def names(self) -> list[str]:
        """The constants that are fitted, in order."""
        return [name for name, constant in self.table.items() if constant.fitted]

    @property
    def share(self) -> np.ndarray:
        """Which of them are shares."""
        return np.array([self.table[name].fitted == 2 for name in self.names])

    def vector(self, field: str) -> np.ndarray:
        """One field of the constants on this scale."""
        value = np.array([getattr(self.table[name], field) for name in self.names])
        inside = np.clip(value, 1e-6, 1 - 1e-6)
        return np.where(self.share, np.log(inside / (1 - inside)), np.log(value))

    @property
    def spread(self) -> np.ndarray:
        """Standard deviations on this scale; the log odds of a share near a half move four times as fast as it."""
        return np.array([self.table[name].spread for name in self.names]) * np.where(self.share, 4, 1)

    def values(self, vector: np.ndarray) -> dict[str, float]:
        """All constants by name, those not fitted as they stand."""
        plain = np.where(self.share, 1 / (1 + np.exp(-vector)), np.exp(vector))
        fixed = {name: constant.value for name, constant in self.table.items()}
        return fixed | dict(zip(self.names, map(float, plain), strict=True))


def fit(rows: Published, scale: Scale, starts: int = STARTS, seed: int = 0) -> np.ndarray:
    """The best of several descents: from the priors, then from the best so far shaken by half a spread."""
    draw = np.random.default_rng(seed)
    best, cost = descend(rows, scale, scale.vector("prior"))
    for _ in range(starts - 1):
        found, its = descend(rows, scale, best + draw.normal(size=best.size) * scale.spread / 2)
        if its < cost:
            best, cost = found, its
    return best


def descend(rows: Published, scale: Scale, vector: np.ndarray, most: int = 40) -> tuple[np.ndarray, float]:
    """Levenberg-Marquardt with weights of the Huber loss, until three steps in a row gain next to nothing."""
    weight, prior, spread = _weights(rows), scale.vector("prior"), scale.spread

    def cost(error: np.ndarray, at: np.ndarray) -> float:
        size = np.abs(error) / NOISE
        loss = np.where(size < HUBER, size**2 / 2, HUBER * size - HUBER**2 / 2)
        return float((weight * loss).sum() + (((at - prior) / spread) ** 2).sum() / 2)

    error = rows.log_ratio(scale.values(vector))
    best, damping, small = cost(error, vector), 1e-2, 0
    for _ in range(most):
        slope = _slopes(rows, scale, vector)
        size = np.maximum(np.abs(error) / NOISE, 1e-9)
        each = weight * np.minimum(1, HUBER / size) / NOISE**2
        curve = (slope * each[:, None]).T @ slope + np.diag(spread**-2)
        down = -(slope * each[:, None]).T @ error - (vector - prior) / spread**2
        for _ in range(8):
            move = np.clip(np.linalg.solve(curve + damping * np.diag(np.diag(curve)), down), -0.4, 0.4)
            tried = rows.log_ratio(scale.values(vector + move))
            if (its := cost(tried, vector + move)) < best:
                break
            damping *= 4
        else:
            break
        small = small + 1 if best - its < best * 1e-4 else 0
        vector, error, best, damping = vector + move, tried, its, max(damping / 4, 1e-6)
        if small == 3:
            break
    return vector, best


def _weights(rows: Published) -> np.ndarray:
    count = Counter(rows.sources)
    weight = np.array([count[source] ** (POWER - 1) for source in rows.sources])
    return weight / weight.sum() * EFFECTIVE


def _slopes(rows: Published, scale: Scale, vector: np.ndarray, step: float = 0.02) -> np.ndarray:
    slopes = []
    for k in range(vector.size):
        move = np.zeros(vector.size)
        move[k] = step
        ahead, behind = (rows.log_ratio(scale.values(vector + sign * move)) for sign in (1, -1))
        slopes.append((ahead - behind) / (2 * step))
    return np.array(slopes).T


def by_source(rows: Published) -> np.ndarray:
    """Fold of each row: sources dealt out by size, back and forth, so that each leaves out large and small ones."""
    order = [source for source, _ in Counter(rows.sources).most_common()]
    places = {source: k % (2 * FOLDS) for k, source in enumerate(order)}
    return np.array([min(places[source], 2 * FOLDS - 1 - places[source]) for source in rows.sources])


def by_group(rows: Published, seed: int = 1) -> np.ndarray:
    """Fold of each row: all runs of one model on one chip in a source go together, dealt out at random."""
    names = [(row.source, row.setting.job.model.name, row.setting.cluster.chip.name) for row in rows.rows]
    order = np.random.default_rng(seed).permutation(len(set(names)))
    place = {name: int(k) % FOLDS for name, k in zip(sorted(set(names)), order, strict=True)}
    return np.array([place[name] for name in names])


def left_out(rows: Published, scale: Scale, folds: np.ndarray) -> np.ndarray:
    """Error of each row, in percent, under constants fitted without its fold."""
    errors = np.zeros(len(rows.rows))
    for fold in range(FOLDS):
        out = folds == fold
        vector = fit(rows.part(~out), scale, starts=1)
        errors[out] = 100 * np.abs(np.exp(rows.log_ratio(scale.values(vector))) - 1)[out]
        print(f"left out {out.sum()} rows", flush=True)
    return errors


def show(rows: Published, errors: np.ndarray) -> dict[str, float]:
    """Print and return the mean error of each source."""
    means = {str(source): float(errors[rows.sources == source].mean()) for source in np.unique(rows.sources)}
    for source, error in sorted(means.items(), key=lambda item: -item[1]):
        print(f"{error:6.1f} %  {(rows.sources == source).sum():5d} rows  {source}")
    print(f"{np.mean(list(means.values())):6.1f} %  mean over {len(means)} sources; {errors.mean():.1f} % over rows")
    return means


def write(scale: Scale, vector: np.ndarray, rows: Published) -> None:
    """The table with its new values, how many rows each acts on, and where they come from."""
    slopes = _slopes(rows, scale, vector)
    acts = dict(zip(scale.names, (np.abs(slopes) > 1e-4).sum(axis=0), strict=True))
    values = scale.values(vector)
    stated = [
        "# Rates of chips, links and stacks; written by bench/fit_hardware.py, whose first lines say how they are fitted.",
        "# fitted: 0 = stays at its prior, 1 = positive, 2 = a share. rows: published rows it acts on.",
        f'date = "{datetime.now(UTC).date()}"',
        f"rows = {len(rows.rows)}",
        f"sources = {len(set(rows.sources))}",
    ]
    for name, constant in scale.table.items():
        own = replace(constant, value=values[name], rows=int(acts.get(name, 0)))
        stated += ["", f'[constants."{name}"]']
        for field in fields(own):
            value = getattr(own, field.name)
            stated.append(f"{field.name} = " + (f'"{value}"' if isinstance(value, str) else f"{value:.6g}"))
    write_text(TABLE, "\n".join(stated) + "\n")


def main() -> int:
    """Fit, or check the fit on sources it has not seen."""
    parser = argparse.ArgumentParser(prog="bench/fit_hardware.py", description=__doc__)
    parser.add_argument("rows", type=Path)
    parser.add_argument("--folds", action="store_true")
    arguments = parser.parse_args()
    rows = Published(trusted(read_rows(arguments.rows)))
    scale = Scale(constants())
    if not arguments.folds:
        write(scale, fit(rows, scale), rows)
        return 0
    means = show(rows, left_out(rows, scale, by_source(rows)))
    groups = left_out(rows, scale, by_group(rows))
    show(rows, groups)
    found = {"mean_percent": float(np.mean(list(means.values()))), "worst_percent": max(means.values())}
    groups_found = {"groups_mean_percent": float(groups.mean()), "groups_median_percent": float(np.median(groups))}
    record("folds", {**found, "sources": len(means), **groups_found, "by_source": means})
    return 0


if __name__ == "__main__":
    sys.exit(main())
