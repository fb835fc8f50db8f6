"""8-bit products beside high ones: decibels of each, losses, ranks against one process, recomputation, checkpoints, faults."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import ranks
from burnish.crew import started_crew
from burnish.data.batch import Batch
from burnish.errors import UserError
from burnish.models.layers import Linear, RMSNorm
from burnish.ops import fp8_cast, fp8_linear
from burnish.ops.fp8_cast import E4M3, E5M2, brought_back, largest, rows, scale_of, squares, whole
from burnish.ops.fp8_linear import Casting, Product
from burnish.ops.fp8_product import EMULATED
from burnish.ops.fp8_scales import Kept, Scales
from burnish.prove import fp8 as claim
from burnish.prove.fp8 import BLOCK_FLOORS, FLOORS, as_listed, quality, trainable_of
from burnish.recipe import Recipe
from burnish.train.state import State, load_checkpoint, save_checkpoint
from burnish.train.step import NonFiniteError
from fp8_models import LR, SCALINGS, make_batches, make_recipe, make_trainable, trained

STEPS, MICRO = 5, 2
NORM = 120.0  # decibels of a norm in float32
SEQUENCE = {"parallel__tp": 2}
SUMS = {"parallel__tp": 2, "parallel__sequence": False}
APART = (
    2e-4  # relative, of a later loss: roundings that another order of summing tips over; 8 bits themselves change 4e-4
)


def relative(found: list, expected: list) -> tuple[float, float, float]:
    """How far the first step's gradient norm, the first loss and all losses are apart."""
    losses = [abs(a[0] / b[0] - 1) for a, b in zip(found, expected, strict=True)]
    return abs(found[0][1] / expected[0][1] - 1), losses[0], max(losses)


def check_quality(scaling: str, compute: str = "fp32") -> None:
    """The named check: after three steps, decibels of all products above their floors; norms in float32; losses near bf16's."""
    wanted, high = claim.recipe(scaling, compute), claim.recipe(None, compute)
    cast, plain = trainable_of(wanted), trainable_of(high)
    batches = claim.batches(wanted)
    losses = [(cast.step(batches, LR).loss, plain.step(batches, LR).loss) for _ in range(3)]
    assert max(abs(a / b - 1) for a, b in losses) < 2e-3
    least = quality(cast, batches[0])
    floors = (BLOCK_FLOORS if scaling == "block" else FLOORS) | ({"norm": NORM} if compute == "fp32" else {})
    assert {kind: least[kind] >= floor for kind, floor in floors.items()} == dict.fromkeys(floors, True), least
    assert least["forward"] < 40.0  # they are cast indeed
    assert as_listed(cast, wanted)


@pytest.mark.parametrize("scaling", SCALINGS)
def test_products_keep_their_decibels(scaling):
    check_quality(scaling)


def test_products_keep_their_decibels_beside_bf16():
    check_quality("current", "bf16")


@pytest.mark.sabotage
@pytest.mark.parametrize("scaling", SCALINGS)
def test_a_scale_fixed_at_1_is_noticed(scaling, monkeypatch):
    plain, plain_rows = fp8_linear.whole, fp8_linear.rows
    monkeypatch.setattr(fp8_linear, "whole", lambda x, scale, form: plain(x, torch.ones_like(scale), form))
    if scaling == "block":
        monkeypatch.setattr(fp8_cast, "_power", lambda amax, form: torch.ones_like(amax))
    assert fp8_linear.rows is plain_rows
    with pytest.raises(AssertionError):
        check_quality(scaling)


@pytest.mark.sabotage
def test_a_norm_that_is_cast_is_noticed(monkeypatch):
    plain = RMSNorm.forward

    def cast(self: RMSNorm, x: torch.Tensor) -> torch.Tensor:
        narrow = brought_back(whole(x.detach(), scale_of(largest(x.detach()), E4M3), E4M3))
        return plain(self, x + (narrow - x.detach()))

    monkeypatch.setattr(RMSNorm, "forward", cast)
    with pytest.raises(AssertionError):
        check_quality("current")


@pytest.mark.parametrize("mode", ["full", "selective"])
@pytest.mark.parametrize("scaling", SCALINGS)
def test_recomputation_changes_nothing(scaling, mode):
    check_recomputed(scaling, mode)


def check_recomputed(scaling: str, mode: str) -> None:
    """Losses and norms bit for bit, in steps of several micro batches."""
    plain, again = (make_recipe(scaling, precision__compute="bf16", memory__checkpointing=m) for m in ("none", mode))
    assert trained(again, STEPS, MICRO) == trained(plain, STEPS, MICRO)


@pytest.mark.sabotage
def test_a_scale_that_changes_within_a_step_is_noticed(monkeypatch):
    plain = Scales.delayed

    def at_once(self: Scales, number: int, amax: torch.Tensor) -> torch.Tensor:
        now = plain(self, number, amax)
        self.scales_T[number] = self.scales_T[number] * 0.7
        return now

    monkeypatch.setattr(Scales, "delayed", at_once)
    with pytest.raises(AssertionError):
        check_recomputed("delayed", "full")


def check_ranks(scaling: str, model: str = "llama", run: Any = trained, **settings: int | str) -> None:
    """The named check: the first step as on one process but for summing, later losses within `APART`."""
    alone = trained(make_recipe(scaling, model), STEPS, MICRO * int(settings.get("parallel__dp", 1)))
    recipe = make_recipe(scaling, model, **settings)
    for found in ranks.run(recipe.parallel.world, run, recipe, STEPS, MICRO):
        norm, first, later = relative(found, alone)
        assert norm < 1e-5
        assert first < 1e-6
        assert later < APART


def apart(recipe: Recipe, steps: int, micro: int) -> list:
    """As `trained`, with ranks that do not tell one another the largest magnitudes of their columns."""
    plain = Casting.one_scale

    def own(self: Casting, x: torch.Tensor, form: torch.dtype, divided: bool, *rest: Any) -> Any:
        return plain(self, x, form, False, *rest)

    with mock.patch.object(Casting, "one_scale", own):
        return trained(recipe, steps, micro)


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("settings", [SEQUENCE, SUMS])
def test_two_ranks_of_a_layer_agree_with_one_process(scaling, settings):
    check_ranks(scaling, **settings)


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_shards_agree_with_one_process(scaling, stage):
    check_ranks(scaling, parallel__dp=2, parallel__zero=stage)


@pytest.mark.parametrize("scaling", SCALINGS)
def test_all_axes_agree_with_one_process(scaling):
    more = {"parallel__pp": 2, "parallel__dp": 2, "parallel__zero": 1, "memory__checkpointing": "full"}
    check_ranks(scaling, "gpt2", parallel__tp=2, **more)


@pytest.mark.sabotage
def test_magnitudes_that_ranks_keep_to_themselves_are_noticed():
    check_ranks("current", parallel__tp=2)
    with pytest.raises(AssertionError):
        check_ranks("current", run=apart, parallel__tp=2)


def go_on(recipe: Recipe, folder: str, steps: int) -> list[float]:
    """Losses of `steps` steps behind a checkpoint, perhaps of other ranks."""
    trainable = make_trainable(recipe)
    load_checkpoint(Path(folder), trainable, {}, started_crew())
    return [trainable.step(make_batches(MICRO, 331, step), LR).loss for step in range(3, 3 + steps)]


@pytest.mark.parametrize("scaling", ["current", "delayed"])
def test_a_run_goes_on_from_a_checkpoint_bit_for_bit_and_on_other_ranks(scaling, tmp_path):
    recipe = make_recipe({"scaling": scaling, "history": 2})
    whole_run = trained(recipe, STEPS, MICRO)
    first = make_trainable(recipe)
    for step in range(3):
        first.step(make_batches(MICRO, 331, step), LR)
    path = save_checkpoint(tmp_path, first, State(3, 0), keep=1)
    expected = [loss for loss, _ in whole_run[3:]]
    assert go_on(recipe, str(path), 2) == expected
    other = make_recipe({"scaling": scaling, "history": 2}, parallel__tp=2, parallel__pp=2)
    for found in ranks.run(4, go_on, other, str(path), 2):
        assert found == pytest.approx(expected, rel=APART)


@pytest.mark.sabotage
def test_a_history_that_is_not_kept_is_noticed(tmp_path, monkeypatch):
    plain = Scales.load_state_dict
    empty = {"history": []}
    monkeypatch.setattr(Scales, "load_state_dict", lambda self, state: plain(self, state | empty))
    with pytest.raises(AssertionError):
        test_a_run_goes_on_from_a_checkpoint_bit_for_bit_and_on_other_ranks("delayed", tmp_path)


def test_a_checkpoint_of_other_matrices_is_refused(tmp_path):
    path = save_checkpoint(tmp_path, make_trainable(make_recipe("delayed")), State(0, 0), keep=1)
    with pytest.raises(UserError, match="scales are of other matrices"):
        load_checkpoint(path, make_trainable(make_recipe({"scaling": "delayed", "without": ("k",)})), {})


# -- what users of other stacks met ------------------------------------------------------------------------------------


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
    from burnish.ops import fp8_product

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


def test_flt_051_tokens_divided_over_ranks_need_no_multiple():
    """18 tokens a rank of 2 x 36: neither they nor the pieces of a packed row are multiples of 8."""
    check_ranks("current", parallel__tp=2, parallel__sequence=True)


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
