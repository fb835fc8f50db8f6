"""Correlation of two columns of numbers: of the numbers (Pearson), and of their ranks (Spearman)."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray


def pearson(a: ArrayLike, b: ArrayLike) -> float:
    """Covariance over the product of the standard deviations, in float64; nan where one column is constant."""
    one, two = (_centred(x) for x in (a, b))
    return float(one @ two / np.sqrt((one @ one) * (two @ two))) if one.any() and two.any() else float("nan")


def _centred(values: ArrayLike) -> NDArray[np.float64]:
    """Deviations from the mean as shares of the largest, whose squares neither vanish nor overflow."""
    given = np.asarray(values, dtype=np.float64)
    if np.ptp(given) == 0:
        return np.zeros_like(given)
    apart = given / np.abs(given).max()
    apart = apart - apart.mean()
    return np.asarray(apart / np.abs(apart).max())


def spearman(a: ArrayLike, b: ArrayLike) -> float:
    """Pearson's correlation of the ranks; equal numbers share the mean of their ranks (Kendall 1945)."""
    return pearson(ranks(a), ranks(b))


def ranks(values: ArrayLike) -> NDArray[np.float64]:
    """Ranks from 1, smallest first; equal values have the mean of the ranks they take up."""
    _, where, counts = np.unique(np.asarray(values, dtype=np.float64), return_inverse=True, return_counts=True)
    last = counts.cumsum()
    return np.asarray((last - (counts - 1) / 2)[where], dtype=np.float64)
