"""What published rows measured: seconds a step from whatever they report, and bytes."""

from __future__ import annotations

import pytest
from published_row import published

from burnish.rows.training import Row, row_of


def timed(**changes: object) -> Row:
    return row_of(published(iter_time_s="", **changes))


def test_seconds_from_tokens_a_second() -> None:
    assert timed(tokens_per_s_per_gpu=8192).measured.seconds == pytest.approx(64 * 4096 / (8192 * 16))


def test_seconds_from_the_formula_that_counts_the_recompute() -> None:
    row = timed(tflops_per_gpu=140, notes="hardware-FLOP convention", stack="megatron-2021")
    s, layers, h, vocab = 4096, 32, 4096, 32000
    flops = 96 * 64 * s * layers * h * h * (1 + s / (6 * h) + vocab / (16 * layers * h))
    assert row.measured.seconds == pytest.approx(flops / (16 * 140e12))


def test_seconds_from_model_flops_and_from_causal_ones() -> None:
    layers, h, kv, ffn, vocab, s = 32, 4096, 1024, 11008, 32000, 4096
    products = 6 * (layers * (2 * h * h + 2 * h * kv + 3 * h * ffn) + vocab * h)
    scores = 12 * layers * h * s
    full = timed(tflops_per_gpu=400).measured.seconds
    causal = timed(tflops_per_gpu=400, source="Llama 3 Herd of Models").measured.seconds
    assert full == pytest.approx((products + scores) * 64 * s / (16 * 400e12), rel=1e-3)
    assert causal == pytest.approx((products + scores / 2) * 64 * s / (16 * 400e12), rel=1e-3)


def test_a_utilisation_is_a_percentage_or_a_fraction() -> None:
    whole, part = timed(mfu=40).measured.seconds, timed(mfu=0.4).measured.seconds
    assert whole == part
    assert whole is not None


def test_a_row_without_any_figure_has_no_time() -> None:
    assert timed().measured.seconds is None


def test_time_comes_before_other_figures() -> None:
    row = row_of(published(tokens_per_s_per_gpu=1, tflops_per_gpu=1))
    assert (row.measured.seconds, row.measured.quantity) == (2.5, "iter_time_s")


def test_memory_in_the_unit_of_its_notes() -> None:
    assert row_of(published(peak_mem_gb=10)).measured.memory == 10e9
    assert row_of(published(peak_mem_gb=10, notes="GiB")).measured.memory == 10 * 2**30
