"""The law for tensor and sequence parallelism: what each rank is observed to do equals what is predicted for it."""

from __future__ import annotations

import itertools

import pytest

import ranks
from burnish.recipe import Recipe
from burnish.techniques import tensor
from tensor_ranks import MODELS, make_recipe, observed, predicted

SAVED = ("saved", "forward", "", "")
SETTINGS = {
    "plain": {},
    "full": {"memory__checkpointing": "full"},
    "selective": {"memory__checkpointing": "selective"},
    "bf16": {"precision__compute": "bf16"},
}
GRID = list(itertools.product(MODELS, (2, 4), (True, False)))
DIAGONAL = [(*cell, list(SETTINGS)[k % 4]) for k, cell in enumerate(GRID)]
REST = [(*cell, name) for cell, name in itertools.product(GRID, SETTINGS) if (*cell, name) not in DIAGONAL]
ZERO = [("llama", 1), ("qwen3 one key head", 2), ("gpt2", 3), ("qwen2", 0), ("mistral", 3)]


def compare(recipe: Recipe, micro: int, pieces: tuple[int, ...] | None = None, broken: str = "nothing") -> None:
    """The named check: each rank's first two steps against the description of that rank."""
    for rank, steps in enumerate(ranks.run(recipe.parallel.world, observed, recipe, micro, pieces, broken)):
        expected = predicted(recipe, micro, rank, pieces)
        for step in steps:
            assert step[SAVED] == pytest.approx(expected[SAVED], rel=0.02)
            assert dict(step) | {SAVED: 0} == dict(expected) | {SAVED: 0}, f"rank {rank}"


@pytest.mark.parametrize(("model", "tp", "sequence", "settings"), DIAGONAL)
def test_predicted_equals_observed_on_each_rank(model, tp, sequence, settings):
    compare(make_recipe(model, tp, sequence=sequence, **SETTINGS[settings]), 2)


@pytest.mark.slow
@pytest.mark.parametrize(("model", "tp", "sequence", "settings"), REST)
def test_predicted_equals_observed_for_every_combination(model, tp, sequence, settings):
    compare(make_recipe(model, tp, sequence=sequence, **SETTINGS[settings]), 2)


@pytest.mark.parametrize(("model", "stage"), ZERO)
@pytest.mark.parametrize("sequence", [True, False])
def test_predicted_equals_observed_beside_zero(model, stage, sequence):
    compare(make_recipe(model, 2, dp=2, sequence=sequence, parallel__zero=stage), 3)


@pytest.mark.parametrize("model", ["llama", "mistral"])
def test_predicted_equals_observed_for_packed_rows(model):
    compare(make_recipe(model, 2), 1, (9, 20, 7))


ADAPTERS = {"rank": 3, "alpha": 5.0}
ADAPTED = [("llama", 2, {}), ("one key head", 4, {}), ("gpt2", 2, {"train": ("norms", "biases")})]
ADAPTED += [("qwen3 one key head", 2, {"targets": ("k", "down")}), ("qwen2", 4, {"targets": ("mlp.*",)})]


@pytest.mark.parametrize(("model", "tp", "more"), ADAPTED)
@pytest.mark.parametrize("sequence", [True, False])
@pytest.mark.parametrize("settings", ["plain", "full", "selective"])
def test_predicted_equals_observed_with_adapters(model, tp, more, sequence, settings):
    given = SETTINGS[settings] | {"techniques": {"lora": ADAPTERS | more}}
    compare(make_recipe(model, tp, sequence=sequence, **given), 2)


@pytest.mark.sabotage
def test_an_input_kept_whole_is_noticed():
    with pytest.raises(AssertionError):
        compare(make_recipe("llama", 2), 1, None, "input kept whole")


@pytest.mark.sabotage
def test_norms_left_out_of_the_plan_are_noticed(monkeypatch):
    monkeypatch.setattr(tensor, "_partial", lambda op, mesh, sequence: ())
    with pytest.raises(AssertionError):
        compare(make_recipe("llama", 2), 1)
