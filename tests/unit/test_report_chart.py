"""The loss curve: round ticks, few points, no spike lost, no slope delayed."""

from __future__ import annotations

import math
import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

import report_example as example
from burnish.chart import LIMIT, downsample, loss_chart, smooth, ticks
from burnish.records import Evaluation, Records
from burnish.report import make_report


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6))
def test_ticks_are_round_ordered_and_inside(low, width):
    high = low + width
    values = ticks(low, high)
    assert 1 <= len(values) <= 12
    slack = 1e-6 * (abs(low) + width)
    assert all(low - slack <= v <= high + slack for v in values)
    assert all(b > a for a, b in pairwise(values))


def test_ticks_of_a_loss_and_of_steps():
    assert ticks(2.8, 7.1) == [3, 4, 5, 6, 7]
    assert ticks(0, 1200) == [0, 200, 400, 600, 800, 1000, 1200]
    assert ticks(3.0, 3.0) == [3.0]


@given(st.integers(3, 3000), st.integers(3, 500))
def test_downsampling_keeps_ends_order_and_the_limit(count, limit):
    points = [(float(k), math.sin(k)) for k in range(count)]
    kept = downsample(points, limit)
    assert len(kept) == min(count, limit)
    assert kept[0] == points[0]
    assert kept[-1] == points[-1]
    assert [x for x, _ in kept] == sorted({x for x, _ in kept})
    assert set(kept) <= set(points)


def test_a_spike_of_one_step_survives():
    points = [(float(k), 50.0 if k == 41_237 else 3.0) for k in range(100_000)]
    assert (41_237.0, 50.0) in downsample(points)


def test_smoothing_is_symmetric_so_a_straight_slope_stays():
    points = [(float(k), 7.0 - 0.01 * k) for k in range(500)]
    assert [y for _, y in smooth(points, 20)] == pytest.approx([y for _, y in points])
    assert smooth([(0, 1.0), (1, 4.0), (2, 1.0)], 1)[1] == (1, 2.0)


def test_a_long_run_draws_at_most_the_limit_a_line():
    chart = str(loss_chart(make_report(example.plan(), example.records(5000))))
    lines = re.findall(r'<path d="(M[^"]*L[^"]*)"', chart)
    assert len(lines) == 3
    assert max(line.count("L") for line in lines) == LIMIT - 1


def test_missing_and_broken_losses_leave_no_trace():
    assert loss_chart(make_report(example.plan())) is None
    held = (Evaluation(step=1, loss=3.0, bits_per_byte=2.0), Evaluation(step=2, loss=math.nan, bits_per_byte=2.0))
    chart = str(loss_chart(make_report(example.plan(), Records(evals=held))))
    assert "nan" not in chart.lower()
    assert "Held-out loss went from 3.000" in chart


def test_the_picture_says_in_words_what_it_shows():
    chart = str(loss_chart(make_report(example.plan(), example.records(100))))
    assert "<title>Loss over training steps</title>" in chart
    assert "Training loss went from" in chart
    assert "nats per token" in chart


@given(st.lists(st.floats(0, 20), min_size=1, max_size=9))
def test_every_point_lies_between_the_outer_lines_of_the_grid(losses):
    evals = tuple(Evaluation(step=n, loss=loss, bits_per_byte=1.0) for n, loss in enumerate(losses))
    chart = str(loss_chart(make_report(example.plan(), Records(evals=evals))))
    (grid,) = re.findall(r'd="([^"]*)" class="grid"', chart)
    lines = [float(y) for y in re.findall(r"M0 ([-\d.]+)H", grid)]
    (dots,) = re.findall(r'd="([^"]*)" class="held dots"', chart)
    heights = [float(y) for y in re.findall(r"M[-\d.]+ ([-\d.]+)h0", dots)]
    assert len(heights) == len(losses)
    assert (min(lines), max(lines)) == (0.0, 1000.0)
    assert all(0.0 <= y <= 1000.0 for y in heights)
    labels = [float(v.replace(",", "")) for v in re.findall(r'class="tick y[^"]*"[^>]*>([-\d.,]+)<', chart)]
    assert len(labels) == len(lines)
    assert max(losses) - min(losses) < 1e-4 or min(labels) >= 0
