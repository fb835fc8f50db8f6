"""Training on several ranks gives the losses, gradient norms and weights of one process, at every ZeRO stage."""

import re
from typing import Any

import numpy as np
import pytest

import ranks
from burnish.data.batch import Batch
from burnish.recipe import Recipe
from burnish.train.step import StepResult
from zero_ranks import (
    ROWS,
    SEQ,
    make_batches,
    make_recipe,
    make_trainable,
    refused,
    stopped,
    trained,
    trained_offloaded,
    whole_weights,
)

STEPS = 5
ALL = ROWS * SEQ
# Labels of each micro batch of a step, rank by rank: unequal, and one that counts none.
LABELS = {2: [ALL, 3, 0, 41], 4: [ALL, 0, 7, 33, 1, 60, 25, 12]}
CASES = [(stage, world, 0, tied) for stage in (0, 1, 2, 3) for world in (2, 4) for tied in (True, False)]
HYBRID = [(stage, 4, 2, stage != 2) for stage in (1, 2, 3)]


def steps_of(recipe: Recipe, labels: list[int], steps: int = STEPS) -> list[list[Batch]]:
    """The same rows in every step, so that the loss falls; labels wander from rank to rank."""
    turned = [labels[step:] + labels[:step] for step in range(steps)]
    return [make_batches(len(labels), recipe.model.vocab, turned[step]) for step in range(steps)]


def check_parity(recipe: Recipe, labels: list[int], broken: str = "nothing", train: Any = trained) -> list[StepResult]:
    """The named check: each rank's losses and norms within 1e-5 of one process, and the weights after the last step."""
    steps = steps_of(recipe, labels)
    alone = make_trainable(recipe, distributed=False)
    expected = [alone.step(batches, 0.01) for batches in steps]
    weights = whole_weights(alone)
    for results, whole, groups in ranks.run(
        recipe.parallel.dp, train, recipe, steps, *([broken] if broken != "nothing" else [])
    ):
        for mine, theirs in zip(results, expected, strict=True):
            assert mine.labels == theirs.labels == sum(labels)
            assert mine.tokens == theirs.tokens == len(labels) * ALL
            assert mine.loss == pytest.approx(theirs.loss, rel=1e-5)
            assert mine.grad_norm == pytest.approx(theirs.grad_norm, rel=1e-5)
        assert groups == 2
        assert whole.keys() == weights.keys()
        for name, value in whole.items():
            np.testing.assert_allclose(value, weights[name], rtol=1e-3, atol=2e-4, err_msg=name)
    return expected


@pytest.mark.parametrize(("stage", "world", "shard", "tied"), CASES + HYBRID)
def test_flt_023_losses_norms_and_weights_are_those_of_one_process(stage, world, shard, tied):
    """Unequal labels in every micro batch and on every rank: a mean of means would differ by tens of percent."""
    recipe = make_recipe("odd", tied, world, stage, parallel__shard=shard, optim__clip=0.5)
    expected = check_parity(recipe, LABELS[world])
    assert all(result.grad_norm > 0.6 for result in expected)  # clipping has something to do
    assert expected[-1].loss < 0.99 * expected[0].loss


@pytest.mark.parametrize("settings", [{"memory__checkpointing": "full"}, {"memory__checkpointing": "selective"}])
def test_parity_with_checkpointing(settings):
    check_parity(make_recipe("narrow", True, 4, 3, **settings), LABELS[4])


@pytest.mark.parametrize("compute", ["bf16", "fp16"])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_16_bit_training_is_that_of_one_process(stage, compute):
    """The same formats, sums in another order. A vector rounded to bf16, or a scale left in, would be far outside."""
    alone = make_trainable(make_recipe("odd", True, 1, 0, precision__compute=compute))
    recipe = make_recipe("odd", True, 2, stage, precision__compute=compute)
    steps = steps_of(recipe, LABELS[2])
    expected = [alone.step(batches, 0.01) for batches in steps]
    for results, weights, _ in ranks.run(2, trained, recipe, steps):
        assert [r.loss for r in results] == pytest.approx([r.loss for r in expected], rel=1e-3)
        assert [r.grad_norm for r in results] == pytest.approx([r.grad_norm for r in expected], rel=1e-2)
        assert weights["model.norm.weight"].dtype == np.float32


@pytest.mark.parametrize(("stage", "world", "shard"), [(1, 2, 0), (2, 4, 2), (3, 2, 0)])
def test_offloaded_states_train_alike(stage, world, shard):
    zero = {"stage": stage, "offload": True}
    recipe = make_recipe("odd", True, world, stage, parallel__zero=zero, parallel__shard=shard)
    check_parity(recipe, LABELS[world], train=trained_offloaded)


@pytest.mark.parametrize("stage", [0, 2, 3])
def test_flt_026_steps_and_micro_batches_without_labels(stage):
    """A rank whose micro batches count no label runs all the same; a step without any label changes nothing."""
    recipe = make_recipe("narrow", True, 2, stage)
    vocab = recipe.model.vocab
    steps = [make_batches(4, vocab, [0, 0, 5, 0]), make_batches(4, vocab, [0] * 4), make_batches(2, vocab, [9, 0])]
    alone = make_trainable(recipe, distributed=False)
    expected = [alone.step(batches, 0.01) for batches in steps]
    weights = whole_weights(alone)
    for results, whole, _ in ranks.run(2, trained, recipe, steps):
        assert [r.labels for r in results] == [5, 0, 9]
        assert (results[1].loss, results[1].grad_norm, results[1].tokens) == (0.0, 0.0, 4 * ALL)
        assert [r.loss for r in results] == pytest.approx([r.loss for r in expected], rel=1e-5)
        for name, value in whole.items():
            np.testing.assert_allclose(value, weights[name], rtol=1e-3, atol=2e-4, err_msg=name)


@pytest.mark.parametrize("bad_rank", [0, 1])
@pytest.mark.parametrize("stage", [0, 1, 3])
def test_what_is_not_finite_on_one_rank_is_applied_on_none(stage, bad_rank):
    recipe = make_recipe("narrow", True, 2, stage)
    good = make_batches(2, recipe.model.vocab, [9, 30])
    results = ranks.run(2, stopped, recipe, good, bad_rank)
    for error, unchanged, after in results:
        assert error.startswith("NonFiniteError")
        assert unchanged
        assert np.isfinite(after.loss)
    assert results[0] == results[1]


@pytest.mark.parametrize(
    ("world", "settings", "message"),
    [
        (2, {"parallel__dp": 4}, r"parallel.dp 4 needs 4 ranks, but 2 were started; start 4, or change parallel"),
        (1, {"parallel__dp": 2}, r"parallel.dp 2 needs 2 ranks, but 1 was started"),
        (2, {"parallel__shard": 1}, r"parallel.shard 1 with zero stage 2 splits nothing; .*\[2\]"),
        (2, {"parallel__zero": 0, "parallel__shard": 1}, r"stage 0 splits nothing; use stage 1"),
        (2, {"parallel__zero": {"stage": 0, "offload": True}}, r"offload moves what is split"),
        (2, {"parallel__zero": {"stage": 3, "offload": True}}, r"host memory already; it needs an accelerator"),
        (1, {"parallel__dp": 1, "parallel__zero": {"stage": 3, "offload": True}}, r"it needs an accelerator"),
    ],
)
def test_refused_in_one_line(world, settings, message):
    recipe = make_recipe("narrow", True, world, 2, train__global_batch=64, **settings)
    for error in ranks.run(world, refused, recipe):
        assert "\n" not in error
        assert re.search(message, error), error


def test_ranks_that_start_from_different_weights_are_refused():
    for error in ranks.run(2, refused, make_recipe("narrow", True, 2, 2), 1):
        assert "ranks start from different weights (model.embed.weight)" in error


def test_one_rank_is_left_as_it_is():
    check_parity(make_recipe("narrow", True, 1, 3), [5, 0, 12])


def test_whole_parameters_kept_over_an_update_are_refused():
    recipe = make_recipe("narrow", True, 2, 2)
    with pytest.raises(ranks.RankError, match="whole parameters are kept over an update"):
        ranks.run(2, trained, recipe, steps_of(recipe, LABELS[2]), "parameters kept over the update")


@pytest.mark.sabotage
@pytest.mark.parametrize("broken", ["kept, and nobody looks", "mean of means", "norm of one shard"])
def test_sabotage(broken):
    """Stale weights, averages of averages, or a norm of a part: parity must fail, not the machinery."""
    with pytest.raises(AssertionError, match="±"):
        check_parity(make_recipe("odd", True, 2, 2), LABELS[2], broken)
