"""Integers of 4 bits: packed as compressed-tensors packs them, within half a step of what they stand for."""

from __future__ import annotations

import pytest
import torch
from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32, unpack_from_int32
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.compress import rtn
from burnish.errors import UserError
from burnish.models.experts import GroupedLinear
from burnish.ops import int4_linear
from burnish.ops.int4_linear import Int4Grouped, Int4Linear, dequantize, from_file, pack, unpack
from burnish.weight_format import IntWeights

SCHEMES = [
    IntWeights(4, group, symmetric, dtype)
    for group in (32, -1)
    for symmetric in (True, False)
    for dtype in ("float16", "bfloat16", "float32")
]


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@given(st.integers(1, 9), st.integers(1, 41), st.integers(0, 2**31))
@settings(max_examples=60, deadline=None)
def test_packed_as_compressed_tensors_packs(rows: int, count: int, seed: int) -> None:
    values = torch.randint(-8, 8, (rows, count), dtype=torch.int8, generator=torch.Generator().manual_seed(seed))
    packed = pack(values)
    assert torch.equal(packed, pack_to_int32(values, 4))
    assert torch.equal(unpack(packed, count), values)
    down = pack(values.t()).t()
    assert torch.equal(down, pack_to_int32(values, 4, packed_dim=0))
    assert torch.equal(unpack_from_int32(down.contiguous(), 4, values.shape, packed_dim=0), values)


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
@pytest.mark.parametrize("shape", [(7, 96), (1, 32), (16, 64)])
def test_every_weight_is_within_half_a_step(scheme: IntWeights, shape: tuple[int, int]) -> None:
    weight = drawn(*shape) + 0.1
    own = rtn.integers(weight, scheme)
    back = dequantize(own)
    step = own.scale.float().repeat_interleave(shape[1] // own.scale.shape[1], dim=1)
    # The largest weight of a symmetric group is 7.5 steps out and is held by 7; zero points are rounded to whole steps.
    allowed = step
    assert ((back - weight).abs() <= allowed + 0.01 * step).all()
    inside = weight.abs() < 6 * step
    assert ((back - weight).abs()[inside] <= 0.51 * step[inside]).all()


@given(st.floats(0.01, 100), st.floats(0, 1), st.booleans(), st.integers(0, 1000))
@settings(max_examples=60, deadline=None)
def test_a_group_of_one_sign_comes_back(low: float, spread: float, negative: bool, seed: int) -> None:
    """A zero point that does not fit 4 bits would bring weights in [1, 1.1] back as 0.1."""
    uniform = torch.rand(3, 64, generator=torch.Generator().manual_seed(seed))
    weight = (low * (1 + spread * uniform)) * (-1 if negative else 1)
    back = dequantize(rtn.integers(weight, IntWeights(4, 32, False, "float32")))
    largest = weight.abs().view(3, 2, 32).amax(-1, keepdim=True)
    assert ((back - weight).abs().view(3, 2, 32) <= largest / 15 / 2 * 1.001).all()


@pytest.mark.parametrize("symmetric", [True, False])
def test_groups_of_zeros_and_of_next_to_nothing(symmetric: bool) -> None:
    weight = torch.zeros(2, 64)
    weight[1, 32:] = 1e-30
    own = rtn.integers(weight, IntWeights(4, 32, symmetric))
    assert torch.isfinite(own.scale).all()
    assert (dequantize(own).abs() < 1e-4).all()


def test_a_scale_beyond_the_format_is_refused() -> None:
    with pytest.raises(UserError, match=r"layers\.0\.mlp\.up: a scale is beyond what float16 holds; dtype bfloat16"):
        rtn.integers(torch.full((2, 32), 1e6), IntWeights(4, 32, True), where="layers.0.mlp.up")


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_the_module_multiplies_by_what_it_stands_for(scheme: IntWeights) -> None:
    weight, bias, x = drawn(13, 96), drawn(13, seed=1), drawn(2, 5, 96, seed=2)
    module = Int4Linear(scheme, 96, rtn.integers(weight, scheme), bias)
    assert module.dequantized().dtype == torch.float32
    assert torch.equal(module(x), torch.nn.functional.linear(x, module.dequantized(), bias))
    exact = x.double() @ module.dequantized().double().t() + bias.double()
    assert (module(x) - exact).abs().max() < 1e-5 * exact.abs().max()
    (stored,) = module.stored()
    back = from_file(scheme, [stored], bias, False)
    assert all(torch.equal(one, two) for one, two in zip(module.buffers(), back.buffers(), strict=True))


@pytest.mark.parametrize("scheme", [IntWeights(4, 32, False), IntWeights(4, 32, True)], ids=str)
def test_experts_multiply_their_own_rows(scheme: IntWeights) -> None:
    weight, counts = drawn(3 * 10, 32), [4, 0, 3]
    module = Int4Grouped(scheme, 32, rtn.integers(weight, scheme))
    plain = GroupedLinear(3, 32, 10)
    plain.weight.data = module.dequantized()
    x = drawn(7, 32, seed=1)
    assert torch.equal(module(x, counts), plain(x, counts))
    back = from_file(scheme, module.stored(6), None, True)
    assert torch.equal(back.dequantized(), module.dequantized())


@pytest.mark.sabotage
def test_zero_points_of_the_other_sign_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    scheme = IntWeights(4, 32, False)
    test_every_weight_is_within_half_a_step(scheme, (7, 96))
    right = int4_linear.dequantize
    wrong = lambda own: right(own._replace(zero=None if own.zero is None else -own.zero))  # noqa: E731
    monkeypatch.setitem(globals(), "dequantize", wrong)
    with pytest.raises(AssertionError):
        test_every_weight_is_within_half_a_step(scheme, (7, 96))


@pytest.mark.sabotage
def test_a_range_without_zero_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    one_sign = test_a_group_of_one_sign_comes_back.hypothesis.inner_test
    one_sign(1.0, 0.1, False, 0)

    def wrong(low: torch.Tensor, high: torch.Tensor, scheme: IntWeights, ratio: float) -> rtn.Steps:
        scale = (high - low) / 15
        return rtn.Steps(scale, (-8 - low / scale).round().clamp(-8, 7))

    monkeypatch.setattr(rtn, "grid", wrong)
    with pytest.raises(AssertionError):
        one_sign(1.0, 0.1, False, 0)
