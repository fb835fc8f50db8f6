"""What users of other 8-bit stacks met: odd numbers of tokens, pads, numbers that are none, zeros, outgrown scales."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from burnish.data.batch import Batch
from burnish.models.layers import Linear
from burnish.ops import fp8_product
from burnish.ops.fp8_cast import E4M3, E5M2, brought_back, largest, rows, scale_of, squares, whole
from burnish.ops.fp8_linear import Casting, Product
from burnish.ops.fp8_product import EMULATED
from burnish.ops.fp8_scales import Kept, Scales
from burnish.train.step import NonFiniteError
from fp8_models import LR, SCALINGS, make_batches, make_recipe, make_trainable


def layer(scaling: str, outputs: int = 32, inputs: int = 48) -> tuple[Linear, Scales]:
    """A linear layer with 8-bit products, not part of a model."""
    torch.manual_seed(0)
    linear = Linear(inputs, outputs)
    torch.nn.init.normal_(linear.weight)
    scales = Scales({"input": E4M3, "gradient": E5M2}, 1, torch.device("cpu"))
    linear.product = Product(Casting(scaling, E5M2, EMULATED), scales, Kept(0, torch.float32), (0, 1))
    return linear, scales


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("tokens", [1, 13, 129])
def test_flt_048_any_number_of_tokens_is_multiplied(scaling, tokens):
    """The gradient of a weight sums over tokens, of which units take 16 at a time: zeros beside them add nothing."""
    linear, _ = layer(scaling)
    x, g = torch.randn(tokens, 48, requires_grad=True), torch.randn(tokens, 32)
    linear(x).backward(g)
    if scaling != "block":
        narrow = [
            brought_back(whole(t, scale_of(largest(t), form), form)) for t, form in ((x.detach(), E4M3), (g, E5M2))
        ]
        if scaling == "delayed":  # no step has been seen: scales are 1
            narrow = [x.detach().to(E4M3).float(), g.to(E5M2).float()]
    else:
        narrow = [brought_back(rows(t.t(), form)).t() for t, form in ((x.detach(), E4M3), (g, E5M2))]
    torch.testing.assert_close(linear.weight.grad, narrow[1].t() @ narrow[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("tokens", [3, 13, 16])
def test_flt_048_units_are_given_tokens_in_sixteens(tokens, monkeypatch):
    """What the device's operation is called with, and that padding leaves its result."""
    seen: list[tuple[int, ...]] = []
    units = torch._scaled_mm
    monkeypatch.setattr(
        torch, "_scaled_mm", lambda a, b, **rest: (seen.append((*a.shape, *b.shape)), units(a, b, **rest))[1]
    )
    g, x = torch.randn(32, tokens), torch.randn(48, tokens)
    casts = [whole(t, scale_of(largest(t), E4M3), E4M3) for t in (g, x)]
    found, wanted = (fp8_product._multiplied(*casts, torch.float32, by) for by in ("scaled_mm", EMULATED))
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    assert seen == [(32, 16, 16, 48)]


@pytest.mark.parametrize("scaling", SCALINGS)
def test_flt_052_tokens_that_pad_a_row_reach_neither_loss_nor_other_gradients(scaling):
    """Rows of 36 of which the last 7 are pads without labels, beside the same rows without them: loss and labels are those of
    the high twin as nearly as without pads."""
    full, short = make_trainable(make_recipe(scaling)), make_trainable(make_recipe(scaling))
    (batch,) = make_batches(1, 331, 0)
    labels = batch.labels.copy()
    labels[:, -7:] = -100
    padded = Batch(batch.ids, labels, batch.positions, None)
    cut = Batch(batch.ids[:, :-7], labels[:, :-7], batch.positions[:, :-7], None)
    high = make_trainable(make_recipe(None)).step([padded], LR)
    found, wanted = full.step([padded], LR), short.step([cut], LR)
    assert found.labels == wanted.labels == high.labels
    assert found.loss == pytest.approx(wanted.loss, rel=1e-3)
    assert found.loss == pytest.approx(high.loss, rel=1e-3)
    assert found.grad_norm == pytest.approx(wanted.grad_norm, rel=0.02)


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("where", ["weight", "embedding"])
def test_what_is_not_finite_stops_the_step(scaling, value, where):
    trainable = make_trainable(make_recipe(scaling))
    batches = make_batches(1, 331, 0)
    trainable.step(batches, LR)
    model = trainable.parts[0].model
    tensor = model.layers[1].mlp.down.weight if where == "weight" else model.embed.weight
    with torch.no_grad():
        before = tensor[int(batches[0].ids[0, 0]) % len(tensor)].clone()
        tensor[int(batches[0].ids[0, 0]) % len(tensor), 0] = value
    with pytest.raises(NonFiniteError):
        trainable.step(batches, LR)
    with torch.no_grad():
        tensor[int(batches[0].ids[0, 0]) % len(tensor)] = before
    assert np.isfinite(trainable.step(batches, LR).loss)  # nothing of it was kept in a history


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("value", [np.inf, np.nan, -np.inf])
def test_an_input_or_gradient_that_is_not_finite_gives_no_plain_number(scaling, value):
    linear, _ = layer(scaling)
    x, g = torch.randn(5, 48), torch.randn(5, 32)
    x[2, 7] = value
    assert not linear(x.requires_grad_())[2].isfinite().any()
    linear, _ = layer(scaling)
    g[3, 1] = value
    x = torch.randn(5, 48, requires_grad=True)
    linear(x).backward(g)
    assert not x.grad[3].isfinite().any()
    assert not linear.weight.grad[1].isfinite().any()


@pytest.mark.parametrize("scaling", SCALINGS)
def test_nothing_but_zeros_gives_zeros(scaling):
    linear, _ = layer(scaling)
    x = torch.zeros(5, 48, requires_grad=True)
    y = linear(x)
    y.backward(torch.zeros_like(y))
    assert torch.equal(y, torch.zeros_like(y))
    assert torch.equal(x.grad, torch.zeros_like(x))
    assert torch.equal(linear.weight.grad, torch.zeros_like(linear.weight))


def test_what_outgrows_a_delayed_scale_is_clamped():
    linear, scales = layer("delayed")
    scales.scales_T[:] = 1.0
    x = torch.full((2, 48), 1000.0, requires_grad=True)
    expected = F.linear(
        torch.full((2, 48), 448.0),
        brought_back(whole(linear.weight.detach(), scale_of(largest(linear.weight), E4M3), E4M3)),
    )
    torch.testing.assert_close(linear(x), expected, rtol=1e-5, atol=1e-3)
    assert scales.seen_T[0] == 1000.0


def test_without_gradients_products_are_the_plain_ones():
    trainable = make_trainable(make_recipe({}))
    plain = make_trainable(make_recipe(None))
    ids = torch.from_numpy(make_batches(1, 331, 0)[0].ids)
    with torch.no_grad():
        assert torch.equal(trainable.parts[0].model(ids), plain.parts[0].model(ids))


def test_layers_that_share_an_input_share_its_cast():
    trainable = make_trainable(make_recipe({}))
    kept: set[int] = set()

    def note(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dtype == E4M3:
            kept.add(tensor.data_ptr())
        return tensor

    (batch,) = make_batches(1, 331, 0)
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        trainable.parts[0](torch.from_numpy(batch.ids), torch.from_numpy(batch.labels))
    assert len(kept) == 4 * 3  # q, k and v; o; gate and up; down


def test_squares_of_a_weight_and_of_its_transpose_are_the_same():
    weight = torch.randn(144, 272)
    turned = brought_back(squares(weight.t(), E4M3)).t()
    assert torch.equal(brought_back(squares(weight, E4M3)), turned)
