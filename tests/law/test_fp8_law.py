"""The law for 8-bit products: what is kept, sent and multiplied is what is predicted, alone and on ranks."""

from __future__ import annotations

import itertools

import pytest

import ranks
from burnish.apply import predict
from burnish.describe import describe
from burnish.measure import observe
from burnish.ops import fp8_linear, recompute
from burnish.techniques import fp8
from burnish.work import fold
from fp8_models import SCALINGS, make_batches, make_recipe, make_trainable, shapes_of
from tensor_ranks import observed, predicted

SAVED = ("saved", "forward", "", "")
SETTINGS = {
    "plain": {},
    "full": {"memory__checkpointing": "full"},
    "selective": {"memory__checkpointing": "selective"},
    "bf16": {"precision__compute": "bf16"},
}
SOME = ({}, {"targets": ("q", "mlp.*")}, {"without": ("q", "down"), "gradients": "e4m3"})
ALONE = [(s, list(SETTINGS)[k % 4], SOME[k // 2 % 3]) for k, s in enumerate(SCALINGS * 4)]
MODELS = ("llama", "one key head", "gpt2")
GRID = list(itertools.product(SCALINGS, MODELS, (True, False)))
DIAGONAL = [(*cell, list(SETTINGS)[k // 2 % 4]) for k, cell in enumerate(GRID)]
REST = [(*cell, name) for cell in GRID for name in SETTINGS if (*cell, name) not in DIAGONAL[::2]]


def agree(found: dict, expected: dict) -> None:
    """Saved bytes within 2 %, all else to the unit; and saved bytes do not agree by chance."""
    assert found[SAVED] == pytest.approx(expected[SAVED], rel=0.02)
    assert dict(found) | {SAVED: 0} == dict(expected) | {SAVED: 0}


def compare(
    scaling: str, settings: str, more: dict, pieces: tuple[int, ...] | None = None, model: str = "llama"
) -> None:
    """The named check on one process: a step against its description."""
    recipe = make_recipe({"scaling": scaling, **more}, model, **SETTINGS[settings])
    work = describe(recipe.model, shapes_of(2, pieces))
    batches = make_batches(2, recipe.model.vocab, 0, pieces)
    agree(observe(make_trainable(recipe, work=work), batches, 1e-3), fold(predict(recipe, work)[0]))


def compare_ranks(fp8: dict, model: str, micro: int = 2, **settings: object) -> None:
    """The named check on ranks: two steps of each against the description of that rank."""
    recipe = make_recipe(fp8, model, **settings)
    for rank, steps in enumerate(ranks.run(recipe.parallel.world, observed, recipe, micro)):
        for step in steps:
            agree(step, predicted(recipe, micro, rank))


@pytest.mark.parametrize(("scaling", "settings", "more"), ALONE)
def test_predicted_equals_observed(scaling, settings, more):
    compare(scaling, settings, more)


@pytest.mark.parametrize("scaling", SCALINGS)
def test_predicted_equals_observed_for_packed_rows(scaling):
    compare(scaling, "bf16", {}, (9, 20, 7))


@pytest.mark.parametrize("model", ["qwen3", "experts"])
@pytest.mark.parametrize("settings", ["plain", "full", "selective"])
def test_predicted_equals_observed_for_other_families(model, settings):
    compare("current", settings, {}, model=model)


@pytest.mark.parametrize("fp8", [{}, {"scaling": "delayed", "targets": ("q", "up")}])
@pytest.mark.parametrize("settings", ["plain", "full", "selective"])
def test_predicted_equals_observed_with_adapters(fp8, settings):
    lora = {"lora": {"rank": 3, "alpha": 5.0}}
    recipe = make_recipe(fp8, techniques=lora, **SETTINGS[settings])
    work = describe(recipe.model, shapes_of(2))
    agree(observe(make_trainable(recipe, work=work), make_batches(2, 331, 0), 1e-3), fold(predict(recipe, work)[0]))


@pytest.mark.parametrize(("scaling", "model", "sequence", "settings"), DIAGONAL[::2])
def test_predicted_equals_observed_on_each_rank(scaling, model, sequence, settings):
    compare_ranks({"scaling": scaling}, model, parallel__tp=2, parallel__sequence=sequence, **SETTINGS[settings])


@pytest.mark.slow
@pytest.mark.parametrize(("scaling", "model", "sequence", "settings"), REST)
def test_predicted_equals_observed_for_every_combination(scaling, model, sequence, settings):
    compare_ranks({"scaling": scaling}, model, parallel__tp=2, parallel__sequence=sequence, **SETTINGS[settings])


@pytest.mark.parametrize(("scaling", "stage"), [(s, 3 - k) for k, s in enumerate(SCALINGS)] + [("current", 0)])
def test_predicted_equals_observed_beside_zero(scaling, stage):
    tp = 2 if stage == 3 else 1
    compare_ranks({"scaling": scaling}, "llama", 3, parallel__dp=2, parallel__tp=tp, parallel__zero=stage)


@pytest.mark.parametrize("scaling", SCALINGS)
def test_predicted_equals_observed_on_stages(scaling):
    compare_ranks({"scaling": scaling, "without": ("k",)}, "llama", parallel__pp=2, parallel__tp=2)


@pytest.mark.parametrize("sequence", [True, False])
def test_predicted_equals_observed_on_each_rank_with_adapters(sequence):
    lora = {"lora": {"rank": 3, "alpha": 5.0}}
    compare_ranks({}, "llama", parallel__tp=2, parallel__sequence=sequence, techniques=lora)


def test_parameters_optimizer_and_flops_are_as_without():
    work = describe(make_recipe(None).model, shapes_of(2))
    plain, cast = (fold(predict(make_recipe(fp8, precision__compute="bf16"), work)[0]) for fp8 in (None, {}))
    assert plain | {SAVED: 0} == cast | {SAVED: 0}
    assert cast[SAVED] < plain[SAVED]


def test_what_a_layer_keeps_is_one_byte_an_element():
    """Two norms' outputs, what attention gives and the product before `down`, each with a factor; by hand."""
    recipe = make_recipe({}, precision__compute="bf16")
    ops = [op for block in predict(recipe, describe(recipe.model, shapes_of(1)))[0].blocks for op in block.ops]
    kept = {op.name: [(saved.role, saved.elements) for saved in op.saved] for op in ops if op.name.endswith(" cast")}
    tokens, factor = 2 * 36, ("statistic", 1)
    assert kept == {
        "q cast": [("quantised", tokens * 48), factor],
        "o cast": [("quantised", tokens * 64), factor],
        "gate cast": [("quantised", tokens * 48), factor],
        "down cast": [("quantised", tokens * 160), factor],
    }
    assert not any(saved.name in ("normed", "product") for op in ops for saved in op.saved)


@pytest.mark.sabotage
def test_inputs_kept_as_they_are_are_noticed(monkeypatch):
    compare("current", "bf16", {})
    plain = fp8_linear._Keep.apply
    monkeypatch.setattr(fp8_linear._Keep, "apply", lambda x, w, values, inverse: plain(x, w, x.detach(), inverse))
    monkeypatch.setattr(fp8_linear, "of_tokens", lambda a, *rest: a.new_zeros(len(a), rest[1].shape[0]).float())
    with pytest.raises(AssertionError):
        compare("current", "bf16", {})


@pytest.mark.sabotage
def test_products_that_recomputation_does_not_know_are_noticed(monkeypatch):
    compare("current", "selective", {})
    monkeypatch.setattr(recompute, "PRODUCTS", recompute.PRODUCTS - {recompute.FORWARD_PRODUCT})
    with pytest.raises(AssertionError):
        compare("current", "selective", {})


@pytest.mark.sabotage
def test_magnitudes_of_a_step_left_out_of_the_plan_are_noticed(monkeypatch):
    monkeypatch.setattr(fp8, "_of_step", lambda config, work, mesh: [])
    with pytest.raises(AssertionError):
        compare_ranks({}, "llama", parallel__dp=2)
