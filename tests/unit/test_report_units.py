"""Quantities as a person reads them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from burnish.units import MISSING, date, parts, show, signed_percent


@pytest.mark.parametrize(
    ("value", "unit", "expected"),
    [
        (80 * 2**30, "bytes", ("80.0", "GiB")),
        (1.5 * 2**20, "bytes", ("1.50", "MiB")),
        (611, "bytes", ("611", "B")),
        (45, "bytes", ("45", "B")),
        (0, "bytes", ("0", "B")),
        (3.07e10, "FLOPs", ("30.7", "GFLOP")),
        (40_394.4, "tokens/s", ("40,394", "tokens/s")),
        (0.2987, "fraction", ("29.9", "%")),
        (1_075_072, "count", ("1,075,072", "")),
        (1_075_072, "short count", ("1.08", "million")),
        (0.0982, "seconds", ("98.2", "ms")),
        (121.7, "seconds", ("2\u00a0min 2", "s")),
        (7290, "seconds", ("2\u00a0h 1", "min")),
        (-12.14, "percent", ("\u221212.1", "%")),
        (1.87342, "bits per byte", ("1.873", "bits per byte")),
        (12, "apples", ("12.0", "apples")),
    ],
)
def test_units(value, unit, expected):
    assert parts(value, unit) == expected


def test_absent_and_exact_values_say_so():
    assert show(None, "bytes") == MISSING
    assert signed_percent(None) == MISSING
    assert signed_percent(0.0) == "exact"
    assert signed_percent(1e-5) == "< 0.05\u00a0%"
    assert signed_percent(3.48) == "+3.5\u00a0%"
    assert signed_percent(-8.35) == "\u22128.3\u00a0%"


def test_dates_are_readable_and_other_text_is_kept():
    assert date("2026-03-04T09:05:59+00:00") == "4 March 2026, 09:05"
    assert date("yesterday") == "yesterday"


@given(st.integers(min_value=0, max_value=10**15))
def test_bytes_keep_their_size_to_three_digits(value):
    number, unit = parts(value, "bytes")
    factor = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}[unit]
    assert float(number.replace(",", "")) * factor == pytest.approx(value, rel=6e-3, abs=0)
