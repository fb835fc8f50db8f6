"""Calibrators: entropy's known values, each rule against a plain loop, and where they differ."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from burnish.compress import calibrators
from burnish.compress.calibrators import CALIBRATORS, entropy_threshold, percentile, squared_error
from burnish.compress.histogram import Histogram

PERCENT = 99.99


def drawn() -> list[NDArray[np.float32]]:
    """Magnitudes: normal, Laplace, rectified with three outliers, lognormal; from one generator in this order."""
    rng, count = np.random.default_rng(0), 300_000
    values = [rng.standard_normal(count), rng.laplace(size=count)]
    values += [np.append(np.maximum(rng.standard_normal(count), 0), [30, 40, 60]), rng.lognormal(size=count)]
    return [np.abs(one).astype(np.float32) for one in values]


def of(values: NDArray[np.float32], inputs: int = 1) -> Histogram:
    made = Histogram()
    made.add(torch.from_numpy(values).view(-1, inputs))
    return made


def check_entropy() -> None:
    for values, wanted in zip(drawn(), (4.4963, 10.4930, 3.8379, 27.4146), strict=True):
        counts, edges = np.histogram(values, 2048, (0, values.max()))
        assert entropy_threshold(counts, edges) == pytest.approx(wanted, abs=5e-5)


def test_entropy_gives_the_values_of_its_reference() -> None:
    check_entropy()


def test_entropy_against_its_definition() -> None:
    """The loop over candidates and levels with both distributions written out."""
    rng = np.random.default_rng(1)
    counts = rng.poisson(np.exp(-np.arange(300) / 40) * 200)
    counts[150:] *= rng.random(150) < 0.2
    edges = np.arange(301) / 50
    bins = counts.astype(float)
    bins[0] = bins[1]
    best, least = 0, np.inf
    for end in range(128, 301):
        level = np.digitize(np.arange(end), np.linspace(0, end, 129)) - 1
        p, q = bins[:end].copy(), np.zeros(end)
        for number in range(128):
            own = (level == number) & (bins[:end] != 0)
            q[own] = bins[:end][own].mean() if own.any() else 0
        p[-1] += bins[end:].sum()
        q[bins[:end] == 0] = 0
        p, q = p / p.sum(), q / q.sum()
        with np.errstate(divide="ignore", invalid="ignore"):
            loss = float(np.where(p > 0, p * np.log(p / q), 0).sum())
        if loss <= least + 1e-15:
            best, least = end, loss
    assert entropy_threshold(counts, edges) == edges[best]


def test_entropy_is_not_the_maximum_on_heavy_tails() -> None:
    for values in drawn()[1:]:
        found = of(values)
        assert CALIBRATORS["entropy"](found, PERCENT) < 0.95 * CALIBRATORS["max"](found, PERCENT)


@pytest.mark.parametrize("percent", [50.0, 99.0, 99.99, 99.999, 100.0])
def test_percentile(percent: float) -> None:
    for values in drawn():
        found = of(values)
        threshold = percentile(found, percent)
        assert (values <= threshold).mean() * 100 >= percent - 1e-9
        below = (values <= threshold - 2 * found.width).mean() * 100
        assert below < percent


def test_the_squared_error_is_the_least_there_is() -> None:
    for values in drawn():
        found = of(values)
        threshold = squared_error(found)

        def error(at: float, values: NDArray[np.float32] = values) -> float:
            step = at / 127
            return float(((np.clip(np.round(values / step), -128, 127) * step - values).astype(float) ** 2).mean())

        ratios = np.linspace(0.05, 1, 96) * found.largest
        assert error(threshold) <= min(error(at) for at in ratios) * 1.01


def test_relative_ignores_the_size_of_a_token() -> None:
    """One token in a hundred a thousand times as large: by the squared error it decides, relative to its size it does not."""
    tokens = np.random.default_rng(0).standard_normal((400, 64)).astype(np.float32)
    tokens[::100] *= 1000
    found = of(tokens, 64)
    assert squared_error(found) > 1000
    assert squared_error(found, relative=True) < 6
    even = of(tokens[1:100], 64)
    assert squared_error(even, relative=True) == pytest.approx(squared_error(even), rel=0.1)


@pytest.mark.parametrize("calibrator", CALIBRATORS)
def test_small_sets(calibrator: str) -> None:
    for values in ([[0.0, 0.0]], [[3.0, -3.0]], [[0.0, 1e-3], [2.5, 0.0]]):
        found = Histogram()
        found.add(torch.tensor(values))
        threshold = CALIBRATORS[calibrator](found, PERCENT)
        assert 0 <= threshold <= found.largest
        assert (threshold > 0) == (found.largest > 0)


@pytest.mark.sabotage
def test_sabotage_one_candidate_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many levels as bins: what a calibrator's defaults can come to, and then it is the maximum."""
    true = entropy_threshold
    monkeypatch.setitem(globals(), "entropy_threshold", lambda counts, edges: true(counts, edges, len(counts)))
    with pytest.raises(AssertionError):
        check_entropy()


@pytest.mark.sabotage
def test_sabotage_what_is_clipped_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrators, "_log", lambda values: np.zeros_like(values))
    with pytest.raises(AssertionError):
        check_entropy()
