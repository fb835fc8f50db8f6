"""Histograms: exact counts, the same whatever the order and size of batches."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.compress import histogram
from burnish.compress.histogram import BINS, Histogram

FINITE = st.floats(width=32, allow_nan=False, allow_infinity=False)


def of(*batches: torch.Tensor) -> Histogram:
    made = Histogram()
    for batch in batches:
        made.add(batch)
    return made


def same(a: Histogram, b: Histogram) -> bool:
    return (
        (a.exponent, a.largest, a.seen) == (b.exponent, b.largest, b.seen)
        and a.sized.keys() == b.sized.keys()
        and all(np.array_equal(a.sized[size], b.sized[size]) for size in a.sized)
    )


def spread(rows: int = 60, seed: int = 0) -> torch.Tensor:
    """Tokens of very different sizes [rows, 7]."""
    drawn = torch.Generator().manual_seed(seed)
    return torch.randn(rows, 7, generator=drawn) * torch.logspace(-4, 5, rows)[:, None]


def check_order() -> None:
    tokens = spread()
    whole = of(tokens)
    assert same(whole, of(*tokens.split(7)))
    assert same(whole, of(*tokens.flip(0).split(1)))
    assert same(whole, of(tokens[torch.randperm(60, generator=torch.Generator().manual_seed(1))]))


def test_any_order_and_size_of_batches_gives_the_same() -> None:
    check_order()


@given(st.lists(st.lists(FINITE, min_size=2, max_size=2), min_size=1, max_size=12), st.randoms(use_true_random=False))
@settings(max_examples=100, deadline=None)
def test_any_order_of_any_values(rows: list[list[float]], random: object) -> None:
    shuffled = rows.copy()
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert same(of(torch.tensor(rows)), of(*(torch.tensor([row]) for row in shuffled)))


def test_counts_are_those_of_numpy() -> None:
    tokens = spread(20)
    made = of(tokens)
    edges = np.arange(BINS + 1) * made.width
    assert np.array_equal(made.counts, np.histogram(tokens.abs().double().numpy(), edges)[0])
    assert made.seen == tokens.numel()
    assert made.largest == float(tokens.abs().max())
    counts, used = made.used()
    assert counts.sum() == made.seen
    assert used[-2] <= made.largest < used[-1]


def test_half_the_bins_or_more_are_used() -> None:
    for largest in (1.0, 1.5, 1.999, 3e-7, 6e4):
        counts, _ = of(torch.tensor([[largest, 0.0]])).used()
        assert BINS // 2 < len(counts) <= BINS


def test_tokens_of_each_size_are_apart() -> None:
    made = of(torch.tensor([[1.0, 1.0], [100.0, 100.0], [0.0, 0.0]]))
    assert sorted(made.sized) == [0, 1, 14]  # mean squares 0 and 1 and 10,000 < 2^14
    relative, _ = made.used(relative=True)
    assert relative.sum() == pytest.approx(2 / 2**1 + 2 / 2**14 + 2)


def test_nothing_and_zeros() -> None:
    assert of().seen == 0
    assert of(torch.zeros(0, 5)).seen == 0
    zeros = of(torch.zeros(3, 5))
    assert (zeros.seen, zeros.largest, zeros.counts[0]) == (15, 0.0, 15)


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
def test_what_is_not_finite_is_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="not finite"):
        of(torch.tensor([[1.0, bad]]))


@pytest.mark.sabotage
def test_sabotage_a_range_that_grows_without_merging(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        histogram.Histogram, "_reach", lambda self, to: setattr(self, "exponent", max(self.exponent, to))
    )
    with pytest.raises(AssertionError):
        check_order()
