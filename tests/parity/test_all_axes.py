"""Tensor, pipeline and data parallelism at once: losses and norms of one process, and the law on every rank."""

from __future__ import annotations

from typing import Any

import pytest

import ranks
from burnish.recipe import Recipe, replace
from tensor_ranks import LR, make_batches, make_recipe, make_trainable, observed, predicted, trained

STEPS, CLOSE, MICRO = 5, 1e-5, 2
SAVED = ("saved", "forward", "", "")
CASES: dict[str, tuple[str, int, int, int, dict[str, Any]]] = {
    "tp 2 x pp 2": ("llama", 2, 2, 1, {}),
    "tp 2 x pp 2, tokens whole": ("qwen2 one key head", 2, 2, 1, {"sequence": False}),
    "tp 2 x pp 2, untied, checkpointed": ("llama untied", 2, 2, 1, {"memory__checkpointing": "full"}),
    "tp 2 x pp 2, positions": ("gpt2", 2, 2, 1, {"memory__checkpointing": "selective"}),
    "tp 2 x pp 2 x dp 2": ("qwen3", 2, 2, 2, {}),
    "tp 2 x pp 2 x dp 2, zero 1": ("llama", 2, 2, 2, {"parallel__zero": 1}),
    "tp 4 x pp 2, zero 1": ("one key head", 4, 2, 1, {}),
}
FAST = ("tp 2 x pp 2", "tp 2 x pp 2 x dp 2, zero 1")


def recipe_of(name: str) -> Recipe:
    model, tp, pp, dp, settings = CASES[name]
    rows = {"train__global_batch": 2 * MICRO * dp, "parallel__pp": pp, "optim__clip": 0.1}
    return make_recipe(model, tp, dp=dp, **rows | settings)


def check_parity(recipe: Recipe) -> None:
    alone = make_trainable(
        replace(recipe, dict.fromkeys(("parallel.tp", "parallel.pp", "parallel.dp"), 1) | {"parallel.zero": 0})
    )
    steps = [make_batches(MICRO * recipe.parallel.dp, recipe.model.vocab, seed) for seed in range(STEPS)]
    expected = [alone.step(batches, LR) for batches in steps]
    assert all(result.grad_norm > recipe.optim.clip for result in expected)
    for results in ranks.run(recipe.parallel.world, trained, recipe, steps):
        for mine, theirs in zip(results, expected, strict=True):
            assert (mine.labels, mine.tokens) == (theirs.labels, theirs.tokens)
            assert mine.loss == pytest.approx(theirs.loss, rel=CLOSE)
            assert mine.grad_norm == pytest.approx(theirs.grad_norm, rel=CLOSE)


def check_law(recipe: Recipe) -> None:
    for rank, steps in enumerate(ranks.run(recipe.parallel.world, observed, recipe, MICRO)):
        expected = predicted(recipe, MICRO, rank)
        for step in steps:
            assert step[SAVED] == pytest.approx(expected[SAVED], rel=0.02)
            assert dict(step) | {SAVED: 0} == dict(expected) | {SAVED: 0}, f"rank {rank}"


@pytest.mark.parametrize("name", FAST)
def test_losses_and_norms_equal_one_process(name: str) -> None:
    check_parity(recipe_of(name))


@pytest.mark.parametrize("name", FAST)
def test_predicted_equals_observed_on_each_rank(name: str) -> None:
    check_law(recipe_of(name))


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in CASES if name not in FAST])
def test_every_combination(name: str) -> None:
    check_parity(recipe_of(name))
    check_law(recipe_of(name))
