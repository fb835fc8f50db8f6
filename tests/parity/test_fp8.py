"""8-bit products beside high ones: decibels of each, losses, ranks against one process, recomputation, checkpoints, faults."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

import ranks
from burnish.crew import started_crew
from burnish.errors import UserError
from burnish.models.layers import RMSNorm
from burnish.ops import fp8_cast, fp8_linear
from burnish.ops.fp8_cast import E4M3, brought_back, largest, scale_of, whole
from burnish.ops.fp8_linear import Casting
from burnish.ops.fp8_scales import Scales
from burnish.prove import fp8 as claim
from burnish.prove.fp8 import BLOCK_FLOORS, FLOORS, as_listed, quality, trainable_of
from burnish.recipe import Recipe
from burnish.train.compiled import compile_layers
from burnish.train.state import State, load_checkpoint, save_checkpoint
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
@pytest.mark.parametrize("stage", [2, 3])
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


def test_flt_051_tokens_divided_over_ranks_need_no_multiple():
    """18 tokens a rank of 2 x 36: neither they nor the pieces of a packed row are multiples of 8."""
    check_ranks("current", parallel__tp=2, parallel__sequence=True)


@pytest.mark.slow
def test_compiled_layers_take_the_same_products():
    """Products stand outside what is compiled; what is compiled rounds as before or nearly so."""
    recipe = make_recipe({}, model__layers=1)
    plain, compiled = make_trainable(recipe), make_trainable(recipe)
    compile_layers(compiled.parts[0].model)
    for step in range(2):
        batches = make_batches(MICRO, 331, step)
        found, wanted = compiled.step(batches, LR), plain.step(batches, LR)
        assert found.loss == pytest.approx(wanted.loss, rel=APART)
        assert found.grad_norm == pytest.approx(wanted.grad_norm, rel=0.01)
