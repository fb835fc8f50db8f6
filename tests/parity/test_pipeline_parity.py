"""Training through a pipeline gives the losses, gradient norms and weights of one process, whatever the schedule."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import ranks
from burnish.data.batch import Batch
from burnish.recipe import Recipe, replace
from burnish.train.evaluate import evaluate
from pipeline_ranks import described, make_batches, make_recipe, refused, stopped, trained, weights_of
from zero_ranks import make_trainable

STEPS, LR, CLIP = 5, 0.003, 0.2
CHUNKS = {"parallel__vpp": 2}
DIVISIBLE = {"heads": 4, "kv_heads": 2}
CASES: dict[str, tuple[int, int, dict[str, Any], dict[str, Any]]] = {
    "1f1b": (3, 2, {}, {}),
    "1f1b untied": (4, 2, {"tied": False}, {}),
    "gpipe": (4, 2, {}, {"parallel__schedule": "gpipe"}),
    "chunks": (4, 2, {}, CHUNKS),
    "chunks full": (6, 2, {}, CHUNKS | {"memory__checkpointing": "full"}),
    "selective": (3, 2, {}, {"memory__checkpointing": "selective"}),
    "four stages": (6, 4, {}, {}),
    "four stages of two chunks": (4, 4, {"layers": 8}, CHUNKS),
    "replicas": (4, 2, {}, {"parallel__dp": 2}),
    "replicas of chunks": (4, 2, {}, {"parallel__dp": 2} | CHUNKS),
    "zero 1": (4, 2, {}, {"parallel__dp": 2, "parallel__zero": 1}),
    "zero 1 of chunks": (4, 2, {}, {"parallel__dp": 2, "parallel__zero": 1} | CHUNKS),
    "zero 2": (4, 2, {}, {"parallel__dp": 2, "parallel__zero": 2}),
    "zero 3": (4, 2, {"tied": False}, {"parallel__dp": 2, "parallel__zero": 3}),
    "zero 3 of chunks": (4, 2, {}, {"parallel__dp": 2, "parallel__zero": 3} | CHUNKS),
    "tensor": (4, 2, DIVISIBLE, {"parallel__tp": 2} | CHUNKS),
    "eight ranks": (4, 2, DIVISIBLE, {"parallel__tp": 2, "parallel__dp": 2, "parallel__zero": 1}),
    "learned positions": (3, 2, {"family": "gpt2", "kv_heads": 3}, {}),
    "windows in later layers": (4, 2, {"family": "qwen2", "window": 5, "window_from": 3}, CHUNKS),
    "experts": (3, 2, {"family": "mixtral", "experts": 4, "topk": 2}, {}),
}
FAST = ("1f1b", "chunks", "four stages", "zero 1 of chunks")


def recipe_of(name: str) -> Recipe:
    micro, stages, model, settings = CASES[name]
    return make_recipe(micro, stages, model.get("layers", 5), model, optim__clip=CLIP, **settings)


def in_one_process(recipe: Recipe) -> Recipe:
    alone = dict.fromkeys(("dp", "pp", "vpp", "tp"), 1) | {"zero": 0, "schedule": "1f1b"}
    return replace(recipe, {f"parallel.{key}": value for key, value in alone.items()})


def steps_of(recipe: Recipe, packed: bool) -> list[list[Batch]]:
    """Labels differ from micro batch to micro batch and from step to step."""
    return [make_batches(recipe, packed, seed) for seed in range(STEPS)]


def check_parity(recipe: Recipe, packed: bool = False, broken: str = "nothing", tolerance: float = 1e-5) -> None:
    """The named check: losses and norms of five steps, the weights of all stages after them, and a loss judged then."""
    steps = steps_of(recipe, packed)
    alone = make_trainable(in_one_process(recipe), distributed=False)
    expected = [alone.step(batches, LR) for batches in steps]
    score = evaluate(alone.parts[0], steps[0]).loss
    weights = {name: values for name, _, values in weights_of(alone)}
    assert all(result.grad_norm > 1.2 * CLIP for result in expected)  # clipping has something to do
    assert len({result.labels for result in expected}) > 1
    found = set()
    for rank, (results, own, judged, kept) in enumerate(
        ranks.run(recipe.parallel.world, trained, recipe, steps, broken, LR)
    ):
        for mine, theirs in zip(results, expected, strict=True):
            assert (mine.labels, mine.tokens) == (theirs.labels, theirs.tokens)
            assert mine.loss == pytest.approx(theirs.loss, rel=tolerance)
            assert mine.grad_norm == pytest.approx(theirs.grad_norm, rel=tolerance)
        assert judged == pytest.approx(score, rel=10 * tolerance)
        assert kept == described(recipe, rank).flight * recipe.parallel.vpp
        for name, there, values in own:
            np.testing.assert_allclose(values, weights[name][there], rtol=1e-3, atol=2e-4, err_msg=name)
            found.add(name)
    assert found == weights.keys() - ({"model.head.weight"} if recipe.model.tied else set())


def test_flt_035_both_copies_of_a_tied_embedding_learn_from_both_gradients():
    assert recipe_of("1f1b").model.tied
    check_parity(recipe_of("1f1b"))


@pytest.mark.parametrize("name", [name for name in FAST if name != "1f1b"])
def test_losses_norms_and_weights_are_those_of_one_process(name):
    check_parity(recipe_of(name))


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in CASES if name not in FAST])
def test_parity_of_more_settings(name):
    check_parity(recipe_of(name))


@pytest.mark.parametrize("name", ["chunks", pytest.param("replicas", marks=pytest.mark.slow)])
def test_packed_rows_see_their_own_text_on_every_stage(name):
    check_parity(recipe_of(name), packed=True)


@pytest.mark.slow
@pytest.mark.parametrize("compute", ["bf16", "fp16"])
@pytest.mark.parametrize("settings", [{}, CHUNKS, {"parallel__dp": 2, "parallel__zero": 1}])
def test_16_bit_training_is_that_of_one_process(compute, settings):
    recipe = make_recipe(4, 2, precision__compute=compute, **settings)
    steps = steps_of(recipe, packed=False)
    alone = make_trainable(in_one_process(recipe))
    expected = [alone.step(batches, LR) for batches in steps]
    for results, *_ in ranks.run(recipe.parallel.world, trained, recipe, steps, "nothing", LR):
        assert [r.loss for r in results] == pytest.approx([r.loss for r in expected], rel=1e-3)
        assert [r.grad_norm for r in results] == pytest.approx([r.grad_norm for r in expected], rel=1e-2)


def test_what_is_not_finite_on_the_last_stage_is_applied_on_none():
    recipe = make_recipe(2, 2)
    for error, unchanged, after in ranks.run(2, stopped, recipe, make_batches(recipe)):
        assert error.startswith("NonFiniteError")
        assert unchanged
        assert np.isfinite(after)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"parallel__schedule": "zero-bubble"}, r"zero-bubble can be planned but not run yet; use gpipe or 1f1b"),
        ({"parallel__vpp": 3}, r"parallel.pp 2 x parallel.vpp 3 is more than the 5 layers; use at most 5"),
        ({"parallel__dp": 2}, r"parallel.dp 2 x pp 2 needs 4 ranks, but 2 were started"),
    ],
)
def test_refused_in_one_line(settings, message):
    for error in ranks.run(2, refused, make_recipe(6, 2, **settings)):
        assert "\n" not in error
        assert re.search(message, error), error


@pytest.mark.sabotage
@pytest.mark.parametrize(
    "broken", ["tied gradients not summed", "the tied copy counted twice", "mean of micro batches"]
)
def test_sabotage(broken):
    check_parity(recipe_of("1f1b"))
    with pytest.raises(AssertionError, match="±"):
        check_parity(recipe_of("1f1b"), broken=broken)
