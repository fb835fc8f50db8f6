"""Loss scaling of fp16: steps left out, the scale halved and doubled, noted, and kept in a checkpoint."""

from pathlib import Path

import pytest
import torch
from test_precision import curve, everything, make_recipe, make_trainable, masters

from burnish.ops.master_weights import LARGEST_SCALE, LEAST_SCALE, LossScale
from burnish.train.state import State, load_checkpoint, save_checkpoint
from burnish.train.step import NonFiniteError, Trainable


def loss_scale(trainable: Trainable) -> LossScale:
    scale = masters(trainable).scale
    assert scale is not None
    return scale


def test_an_overflow_skips_the_step_and_halves_the_scale() -> None:
    trainable = make_trainable(make_recipe("fp16"))
    curve(trainable, 2)
    scale, before = loss_scale(trainable), everything(trainable)
    assert (scale.value, scale.skipped) == (16.0, 0)
    scale.value = 2.0**30
    (skipped,) = curve(trainable, 1)
    assert (scale.value, scale.skipped, scale.held) == (2.0**29, 1, 0)
    assert skipped.grad_norm == 0.0
    assert 4.0 < skipped.loss < 6.0
    assert (skipped.labels, skipped.tokens) == (153, 174)
    assert all(torch.equal(a, b) for a, b in zip(before, everything(trainable), strict=True))
    scale.value = 16.0
    curve(trainable, 1)
    assert not torch.equal(before[0], everything(trainable)[0])


def test_the_scale_grows_after_steps_without_overflow_up_to_its_limit() -> None:
    trainable = make_trainable(make_recipe({"compute": "fp16", "loss_scale": 64, "growth_steps": 2}))
    curve(trainable, 5)
    scale = loss_scale(trainable)
    assert (scale.value, scale.held, scale.skipped) == (256.0, 1, 0)
    scale.value = LARGEST_SCALE
    saved = scale.state_dict()
    curve(trainable, 1)
    assert loss_scale(trainable).value <= LARGEST_SCALE
    scale.load_state_dict(saved)
    assert scale.state_dict() == {"value": LARGEST_SCALE, "held": 1, "skipped": 0}


def test_what_is_not_finite_at_the_least_scale_is_raised() -> None:
    trainable = make_trainable(make_recipe({"compute": "fp16", "loss_scale": 2 * LEAST_SCALE}))
    trainable.parts[0].model.layers[0].mlp.down.weight.register_hook(lambda gradient: gradient * float("inf"))
    curve(trainable, 1)
    assert (loss_scale(trainable).value, loss_scale(trainable).skipped) == (LEAST_SCALE, 1)
    with pytest.raises(NonFiniteError):
        curve(trainable, 1)


def check_scale_goes_on(folder: Path) -> None:
    """The named check: a scale that has halved and grown by the time of saving goes on, and with it the same losses."""
    recipe = make_recipe({"compute": "fp16", "loss_scale": 2.0**15, "growth_steps": 3})
    whole, first, resumed = (make_trainable(recipe, seed) for seed in (1, 1, 9))
    expected = curve(whole, 16)
    curve(first, 9)
    load_checkpoint(save_checkpoint(folder, first, State(9, 0), keep=1), resumed, {})
    at_save = loss_scale(first).state_dict()
    assert at_save["skipped"] >= 2
    assert at_save["held"] > 0
    assert loss_scale(resumed).state_dict() == at_save
    assert curve(resumed, 7) == expected[9:]
    assert loss_scale(resumed).state_dict() == loss_scale(whole).state_dict()
    assert loss_scale(whole).skipped > at_save["skipped"]


def test_a_resumed_run_goes_on_with_the_same_scale(tmp_path: Path) -> None:
    check_scale_goes_on(tmp_path)


@pytest.mark.sabotage
def test_a_scale_that_a_checkpoint_forgets_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LossScale, "load_state_dict", lambda self, state: None)
    with pytest.raises(AssertionError):
        check_scale_goes_on(tmp_path)


def test_skipped_steps_are_noted() -> None:
    trainable = make_trainable(make_recipe({"compute": "fp16", "loss_scale": 2.0**15}))
    (carried,) = trainable.carried.values()
    assert carried.notes() == []
    loss_scale(trainable).value = 2.0**30
    curve(trainable, 1)
    assert carried.notes() == ["fp16: steps skipped because gradients overflowed: 1; loss scale at the end 5.36871e+08"]
    assert not make_trainable(make_recipe("bf16")).carried
