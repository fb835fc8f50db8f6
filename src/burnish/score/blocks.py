"""Score blocks: errors, orders and verdicts of a group of lines as one record of numbers."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from burnish.score.lines import Line

MEGABYTE = 1e6


def block(lines: Sequence[Line]) -> dict[str, Any]:
    """Figures of a group; None where no line has what a figure needs. Errors are |predicted / measured - 1|, in percent."""
    shown = [line for line in lines if line.expressed]
    times = errors(line.seconds for line in shown)
    settled = [line for line in shown if line.allocated]
    memory = errors(line.allocated or line.peak for line in shown)
    bytes_off = [abs(a - b) for a, b in _pairs(line.allocated or line.peak for line in shown)]
    verdicts = [predicted == measured for predicted, measured in (line.fits for line in shown if line.fits)]
    tau, regret = orders(shown)
    return {
        "rows": len(lines),
        "expressed": len(shown),
        "timed": len(times),
        "time_median_pct": _percent(np.median, times),
        "time_mean_pct": _percent(np.mean, times),
        "time_worst_pct": _percent(np.max, times),
        "memory_mean_pct": _percent(np.mean, memory),
        "memory_median_mb": round(float(np.median(bytes_off)) / MEGABYTE, 2) if bytes_off else None,
        "peak_mean_pct": _percent(np.mean, errors(line.peak for line in settled)),
        "fit_right": sum(verdicts) if verdicts else None,
        "fit_wrong": len(verdicts) - sum(verdicts) if verdicts else None,
        "kendall_tau": tau,
        "regret_pct": regret,
    }


def errors(pairs: Iterable[tuple[float, float] | None]) -> list[float]:
    """|predicted / measured - 1| of each pair."""
    return [abs(predicted / measured - 1) for predicted, measured in _pairs(pairs)]


def _pairs(pairs: Iterable[tuple[float, float] | None]) -> list[tuple[float, float]]:
    return [pair for pair in pairs if pair is not None and pair[1]]


def _percent(figure: Any, values: Sequence[float]) -> float | None:
    return round(100 * float(figure(values)), 3) if values else None


def orders(lines: Sequence[Line]) -> tuple[float | None, float | None]:
    """Mean over jobs of Kendall's tau, and of the regret in percent: how much slower than the best of a job the mapping
    is that was predicted to be the fastest."""
    jobs: dict[tuple[Any, ...], list[tuple[float, float]]] = defaultdict(list)
    for line in lines:
        if line.seconds is not None:
            jobs[line.job].append(line.seconds)
    taus, regrets = [], []
    for pairs in jobs.values():
        if len(pairs) < 2:
            continue
        predicted, measured = np.array(pairs).T
        if (tau := kendall_tau(predicted, measured)) is not None:
            taus.append(tau)
        regrets.append(float(measured[np.argmin(predicted)] / measured.min() - 1))
    return (
        round(float(np.mean(taus)), 4) if taus else None,
        round(100 * float(np.mean(regrets)), 3) if regrets else None,
    )


def kendall_tau(predicted: np.ndarray, measured: np.ndarray) -> float | None:
    """Kendall's tau-b (Kendall 1945): pairs in one order less pairs in opposite orders; None where one side is all ties."""
    # Knight 1966: sorted by one side, pairs in opposite orders are what sorting by the other has to swap.
    count = len(predicted)
    pairs = count * (count - 1) // 2
    order = np.lexsort((measured, predicted))
    second = np.unique(measured, return_inverse=True)[1][order]
    first = np.unique(predicted, return_inverse=True)[1][order]
    tied_first, tied_second = _ties(first), _ties(second)
    tied_both = _ties(first * count + second)
    scale = math.sqrt((pairs - tied_first) * (pairs - tied_second))
    swaps = _swaps([int(rank) for rank in second])
    return (pairs - tied_first - tied_second + tied_both - 2 * swaps) / scale if scale else None


def _ties(ranks: np.ndarray) -> int:
    """Pairs of equal ranks."""
    counts = np.unique(ranks, return_counts=True)[1].astype(object)
    return int((counts * (counts - 1) // 2).sum())


def _swaps(ranks: Sequence[int]) -> int:
    """Pairs of which the later rank is the lower one, counted in a tree of partial sums (Fenwick 1994)."""
    size = max(ranks, default=0) + 1
    tree, swaps = [0] * (size + 1), 0
    for before, rank in enumerate(ranks):
        at, not_higher = rank + 1, 0
        while at:
            not_higher += tree[at]
            at &= at - 1
        swaps += before - not_higher
        at = rank + 1
        while at <= size:
            tree[at] += 1
            at += at & -at
    return swaps
