"""Metrics: the one figure by which a compressed model is accepted, with its budget and how sure the drop is.

A metric gives sums for each piece (row of text, labelled example), of which its value is a function of the ratio of the
totals. The noise of a drop is a paired bootstrap (Efron 1979; Koehn 2004): pieces are drawn again with replacement, the
same ones for both models.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from torch import nn

from burnish.compress.divergence import Probe, Seen, Sums
from burnish.errors import UserError
from burnish.verified import PERCENT, Judged

DRAWS = 1000
COVERED = 0.95  # of the drawn drops lie within the noise
SEED = 0


@dataclass(frozen=True)
class Measured:
    """Sums for each piece; a single piece has no noise that could be told. `seen`: what the probe saw on the way."""

    above: Sums
    below: Sums
    seen: Seen | None = None

    @property
    def ratio(self) -> float:
        """Total above over total below."""
        return float(self.above.sum() / self.below.sum())


@dataclass(frozen=True)
class Metric:
    """`value` makes the figure of a ratio of sums; `unit` says how a drop is counted."""

    name: str
    lower_is_better: bool
    unit: Literal["percent", "points"]
    measure: Callable[[nn.Module], Measured]
    value: Callable[[float], float] = float

    def of(self, measured: Measured) -> float:
        """The figure."""
        return self.value(measured.ratio)

    def drop(self, baseline: float, compressed: float) -> float:
        """How much worse, above 0: in percent of the baseline, or in points of a share."""
        worse = compressed - baseline if self.lower_is_better else baseline - compressed
        return 100 * (worse / abs(baseline) if self.unit == PERCENT else worse)


def perplexity(probe: Probe, itself: nn.Module) -> Metric:
    """exp of the mean nats a token of the probe's text; what the probe has already seen of `itself` is not run again."""

    def measure(model: nn.Module) -> Measured:
        seen = probe.itself if model is itself else probe.seen(model)
        return Measured(seen.above, seen.below, seen)

    return Metric("perplexity", True, PERCENT, measure, lambda nats: math.exp(min(nats, 700.0)))


def judge(metric: Metric, baseline: Measured, compressed: Measured, max_drop: float | None) -> Judged:
    """Both figures, the drop and its noise. Raises UserError for figures that are not finite and a baseline of 0 to which
    a drop cannot be set in relation."""
    before, after = metric.of(baseline), metric.of(compressed)
    if not (math.isfinite(before) and math.isfinite(after)):
        raise UserError(f"{metric.name}: {before} before, {after} after; finite figures are needed")
    if metric.unit == PERCENT and before == 0:
        raise UserError(f"{metric.name}: 0 before compression, so a drop in percent means nothing; use another metric")
    return Judged(
        name=metric.name,
        lower_is_better=metric.lower_is_better,
        baseline=before,
        compressed=after,
        drop=metric.drop(before, after),
        unit=metric.unit,
        noise=noise(metric, baseline, compressed),
        pieces=len(baseline.above),
        max_drop=max_drop,
    )


def noise(metric: Metric, baseline: Measured, compressed: Measured) -> float | None:
    """Half the width of the interval in which the drops on resampled pieces lie; None for a single piece."""
    count = len(baseline.above)
    if count < 2 or len(compressed.above) != count:
        return None
    drawn = np.random.default_rng(SEED).integers(count, size=(DRAWS, count))
    drops = []
    for rows in drawn:
        sides = [Measured(side.above[rows], side.below[rows]) for side in (baseline, compressed)]
        before, after = (metric.of(side) for side in sides)
        drops.append(metric.drop(before, after) if before or metric.unit != PERCENT else math.nan)
    low, high = np.nanquantile(drops, [(1 - COVERED) / 2, (1 + COVERED) / 2])
    return float(high - low) / 2
