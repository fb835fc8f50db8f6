"""Linear layers in 8-bit integers: exact sums, rows that do not depend on one another, known roundings."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from burnish.ops import int8_linear
from burnish.ops.int8_linear import EXACT, Int8Linear, from_file, integer_product, of_weight, output_scales
from burnish.weight_format import IntWeights, held_bytes, stored

STATIC, DYNAMIC = (IntWeights(8, -1, True, "float32", inputs) for inputs in ("tensor", "token"))


def made(inputs: int = 70, outputs: int = 33, static: bool = True) -> Int8Linear:
    drawn = torch.Generator().manual_seed(0)
    weight = torch.randn(outputs, inputs, generator=drawn) * torch.logspace(-3, 1, outputs)[:, None]
    weight[5] = 0
    bias = torch.randn(outputs, generator=drawn)
    return of_weight(STATIC if static else DYNAMIC, weight, 3.0 if static else None, bias)


def rows(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


def check_exact(inputs: int) -> None:
    """Largest sums there are, and drawn ones."""
    drawn = torch.Generator().manual_seed(0)
    x = torch.randint(-128, 128, (9, inputs), generator=drawn).float()
    weight = torch.randint(-127, 128, (5, inputs), generator=drawn).to(torch.int8)
    x[0], x[1], weight[0], weight[1] = -128, 127, -127, 127
    assert torch.equal(integer_product(x, weight), (x.double() @ weight.double().t()).float())


@pytest.mark.parametrize("inputs", [1, 384, EXACT, EXACT + 1, 1536, 4099])
def test_sums_are_exact(inputs: int) -> None:
    check_exact(inputs)


@pytest.mark.parametrize("static", [True, False])
def test_against_integers_in_float64(static: bool) -> None:
    layer, x = made(static=static), rows(4, 7, 70) * 2
    if static:
        assert layer.input_scale is not None
        step = layer.input_scale
    else:
        step = x.abs().amax(-1, keepdim=True) / 127
    values = (x / step).round().clamp(-128, 127)
    wanted = (values.double() @ layer.weight.double().t()) * step.double() * layer.weight_scale.double().t()
    assert layer.bias is not None
    wanted = wanted + layer.bias.double()
    torch.testing.assert_close(layer(x).double(), wanted, rtol=1e-6, atol=1e-6)


def check_alone(static: bool) -> None:
    layer, x = made(static=static), rows(6, 70)
    x[3] *= 50
    together = layer(x)
    for k in range(6):
        assert torch.equal(layer(x[k : k + 1])[0], together[k])


@pytest.mark.parametrize("static", [True, False])
def test_a_row_does_not_depend_on_the_others(static: bool) -> None:
    check_alone(static)


def check_scales() -> None:
    """Each output's own largest weight is 127 of its steps, and no weight is further off than half a step."""
    drawn = torch.Generator().manual_seed(0)
    weight = torch.randn(33, 33, generator=drawn) * torch.logspace(-3, 1, 33)[:, None]
    layer = of_weight(DYNAMIC, weight, None)
    assert torch.equal(layer.weight.abs().amax(1), torch.full((33,), 127, dtype=torch.int8))
    assert bool(((layer.dequantized() - weight).abs() <= layer.weight_scale * 0.5001).all())


def test_each_output_has_its_own_scale() -> None:
    check_scales()
    assert bool((output_scales(torch.zeros(3, 4)) == 1).all())


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("inputs", ["tensor", "token"])
def test_tensors_are_those_of_the_format(dtype: str, inputs: str) -> None:
    scheme = IntWeights(8, -1, True, dtype, inputs)
    layer = of_weight(scheme, rows(8, 12), 2.0 if inputs == "tensor" else None)
    (own,) = layer.stored()
    found = {f"m.{name}": (str(t.dtype).removeprefix("torch."), tuple(t.shape)) for name, t in own.items()}
    assert found == stored(scheme, "m", (8, 12))
    assert sum(t.nbytes for t in layer.state_dict().values()) == held_bytes(scheme, (8, 12))
    again = from_file(scheme, layer.stored(2), None)
    x = rows(3, 12)
    assert torch.equal(again(x), layer(x))


def test_zeros_and_16_bits() -> None:
    layer = made(static=False)
    assert layer.bias is not None
    assert torch.equal(layer(torch.zeros(2, 70)), layer.bias.expand(2, -1))
    assert layer(rows(2, 70).bfloat16()).dtype == torch.bfloat16
    assert layer(torch.zeros(0, 70)).shape == (0, 33)


@pytest.mark.sabotage
def test_sabotage_sums_of_all_inputs_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(int8_linear, "EXACT", 10**9)
    with pytest.raises(AssertionError):
        check_exact(4099)


@pytest.mark.sabotage
def test_sabotage_scales_along_the_wrong_axis(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(int8_linear, "output_scales", lambda w: w.abs().amax(0).div(127).unsqueeze(1))
    with pytest.raises(AssertionError):
        check_scales()


@pytest.mark.sabotage
def test_sabotage_one_scale_for_all_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(int8_linear, "token_scales", lambda x: x.abs().amax() / 127)
    with pytest.raises(AssertionError):
        check_alone(False)
