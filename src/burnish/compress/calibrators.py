"""Calibrators: from a histogram of magnitudes, the largest one that the integers shall still represent.

What lies above is clipped to it; a smaller one gives the rest finer steps. The four rules are those of the TensorRT family of
calibrators (NVIDIA, "8-bit inference with TensorRT", GTC 2017; Wu et al. 2020, arXiv 2004.09602, section 4), each written over
whole arrays of candidates. The fifth is the squared error again, each token's relative to its own size: the few tokens that are
many times as large as all others would otherwise decide, and a norm takes their size away again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from burnish.compress.histogram import Histogram, Values

LEVELS = 128  # magnitudes of a signed 8-bit integer
STEPS = 127  # the largest of them that both signs have
DIVIDED = 4096  # bins of entropy over the whole range: its reference has 2048 up to the largest value
MANY = 8  # bins
SMALLEST = 16  # bins below the first candidate of the squared error
COARSE = 256  # candidates of the first look at the squared error


def maximum(found: Histogram) -> float:
    """The largest magnitude: nothing is clipped."""
    return found.largest


def percentile(found: Histogram, percent: float) -> float:
    """A magnitude that at least `percent` of the values do not exceed: the upper edge of the bin where they are reached."""
    if not found.seen:
        return 0.0
    counts, edges = found.used()
    reached = np.searchsorted(np.cumsum(counts), counts.sum() * percent / 100)
    return float(min(edges[min(reached, len(counts) - 1) + 1], found.largest))


def entropy(found: Histogram) -> float:
    """The threshold at which the values, clipped and put into levels, lose least information (`entropy_threshold`)."""
    counts, edges = found.used(bins=DIVIDED)
    return min(entropy_threshold(counts, edges), found.largest) if len(counts) > LEVELS else found.largest


def entropy_threshold(counts: NDArray[Any], edges: Values, levels: int = LEVELS) -> float:
    """The edge i whose clipped histogram P and its version Q in `levels` levels have the least divergence KL(P || Q).

    P is bins [0, i) with everything above added to the last; a level of Q spreads the sum of its bins evenly over those that hold
    anything. Bin 0 counts as bin 1 does: zeros are represented anyway. Of equal candidates the largest is taken. The sums of each
    level are differences of cumulative sums, so that all candidates are looked at together.
    """
    bins = counts.astype(np.float64)
    bins[0] = bins[1]
    total = bins.sum()
    if not total:
        return float(edges[-1])
    ends = np.arange(levels, len(bins) + 1)
    cuts = -(-ends[:, None] * np.arange(levels + 1) // levels)  # first bin of each level
    held, filled, own = (_sums(values) for values in (bins, bins > 0, bins * _log(bins)))
    sums, bars = held[cuts[:, 1:]] - held[cuts[:, :-1]], filled[cuts[:, 1:]] - filled[cuts[:, :-1]]
    level = _log(sums / np.maximum(bars, 1))
    tail, edge = total - held[ends], bins[ends - 1]
    last = edge + tail
    cross = (sums * level).sum(1) + tail * level[:, -1]
    loss = (own[ends - 1] + last * _log(last) - cross) / total - np.log(total) + _log(sums.sum(1))
    loss[(edge == 0) & (last > 0)] = np.inf  # P has something where Q has nothing
    best = len(loss) - 1 - int(np.argmax((loss <= loss.min() + 1e-15)[::-1]))
    return float(edges[ends[best]])


def _sums(values: NDArray[Any]) -> Values:
    """Sums of the first 0, 1, 2, ... values."""
    return np.concatenate([[0.0], np.cumsum(values, dtype=np.float64)])


def _log(values: Values) -> Values:
    """Natural logarithm, 0 where there is nothing."""
    return np.log(np.where(values > 0, values, 1.0))


def squared_error(found: Histogram, relative: bool = False) -> float:
    """The threshold with the least squared error, rounding and clipping together, of values in the middle of their bins.

    `relative`: each token's error is divided by its mean square, to a power of two. Every bin's middle is a candidate, as is the
    largest value; a coarse look comes first and a fine one around its best.
    """
    counts, edges = found.used(relative)
    if len(counts) <= SMALLEST:
        return found.largest
    middles = np.minimum((edges[1:] + edges[:-1]) / 2, found.largest)
    step = max((len(counts) - SMALLEST) // COARSE, 1)
    coarse = np.append(middles[SMALLEST::step], found.largest)
    best = int(np.argmin(_errors(counts, middles, coarse)))
    at = int(np.searchsorted(middles, coarse[best]))
    fine = np.append(middles[max(at - step, SMALLEST) : at + step + 1], coarse[best])
    return float(fine[np.argmin(_errors(counts, middles, fine))])


def _errors(counts: Values, middles: Values, thresholds: Values) -> Values:
    """Sum over bins of count times squared error, for each threshold.

    Where a step is not many bins wide, that of rounding is a step's square / 12: middles of bins could lie on the steps.
    """
    scales = (thresholds / STEPS)[:, None]
    rounded = np.minimum(np.round(middles / scales), STEPS) * scales
    errors = (rounded - middles) ** 2
    narrow = scales < MANY * (middles[1] - middles[0])
    errors = np.where(narrow & (middles <= thresholds[:, None]), scales**2 / 12, errors)
    total: Values = errors @ counts
    return total


CALIBRATORS: dict[str, Callable[[Histogram, float], float]] = {
    "max": lambda found, percent: maximum(found),
    "entropy": lambda found, percent: entropy(found),
    "percentile": percentile,
    "mse": lambda found, percent: squared_error(found),
    "relative": lambda found, percent: squared_error(found, relative=True),
}
