"""Scales of keys and values hold for a text at any place, and what is rounded under them is off by half a step at most."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.models.rotary import rotary_angles, rotate
from burnish.pool_size import OPENED
from burnish.serve.attention import Run, opened
from burnish.serve.rounding import LEVELS, ROOM, Scales, rounded, scales_of

LAYERS, HEADS, SLOTS, SIZE = 2, 3, 20, 8


def cache(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    keys, values = torch.randn(2, LAYERS, HEADS, SLOTS, SIZE, generator=draw) * 3
    return keys, values


def at(keys: torch.Tensor, place: int) -> torch.Tensor:
    """Keys turned as those of a text that begins at a place."""
    angles = rotary_angles(torch.arange(place, place + SLOTS)[None], SIZE, 10_000.0, torch.float32, None)
    return torch.stack([rotate(layer.transpose(0, 1)[None], angles)[0].transpose(0, 1) for layer in keys])


@pytest.mark.parametrize("place", [0, 1, 7, 1000])
def test_keys_have_the_same_scales_wherever_their_text_stands(place):
    keys, values = cache()
    here, there = scales_of(at(keys, 0), values, True), scales_of(at(keys, place), values, True)
    torch.testing.assert_close(here.keys, there.keys, rtol=1e-4, atol=0)
    assert torch.equal(here.values, there.values)


def test_scales_reach_beyond_what_was_seen_and_no_further():
    keys, values = cache()
    plain = scales_of(keys, values, turned=False)
    torch.testing.assert_close(plain.keys, keys.abs().amax(2) * ROOM / LEVELS)
    torch.testing.assert_close(plain.values, values.abs().amax(2) * ROOM / LEVELS)
    turned = scales_of(keys, values, turned=True)
    half = SIZE // 2
    wanted = (keys[..., :half] ** 2 + keys[..., half:] ** 2).sqrt().amax(2) * ROOM / LEVELS
    torch.testing.assert_close(turned.keys, torch.cat([wanted, wanted], -1))


def test_a_channel_of_zeros_has_a_scale():
    keys, values = torch.zeros(2, LAYERS, HEADS, SLOTS, SIZE)
    scales = scales_of(keys, values, turned=True)
    assert isinstance(scales, Scales)
    assert all((x > 0).all() for x in scales)
    assert not rounded(keys[0].transpose(0, 1), scales.keys[0]).any()


@given(st.lists(st.floats(-1e4, 1e4, width=32), min_size=1, max_size=30), st.floats(0.015625, 10, width=32))
@settings(deadline=None)
def test_an_integer_is_the_nearest_one_or_the_last(numbers, scale):
    x = torch.tensor(numbers)[:, None, None]
    made = rounded(x, torch.tensor([[scale]]))
    assert made.dtype == torch.int8
    inside = x.abs() <= LEVELS * scale
    assert ((made * scale - x).abs() <= scale * 0.5001)[inside].all()
    assert (made.int().abs() == LEVELS)[~inside].all()


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 3 * OPENED)), max_size=5))
def test_opened_runs_hold_the_same_positions(given):
    runs, end = [], 0
    for gap, length in given:
        runs.append(Run(end + gap, length))
        end += gap + length
    made = opened(runs)
    assert all(1 <= run.length <= OPENED for run in made)
    assert [s for run in made for s in range(run.slot, run.slot + run.length)] == [
        s for run in runs for s in range(run.slot, run.slot + run.length)
    ]
