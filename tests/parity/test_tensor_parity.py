"""Tensor and sequence parallelism against one process: losses and gradient norms of five steps."""

from __future__ import annotations

import itertools

import pytest

import ranks
from burnish.data.batch import Batch
from burnish.recipe import replace
from tensor_ranks import LR, MODELS, make_batches, make_recipe, make_trainable, trained

STEPS, CLOSE = 5, 1e-5
CASES = [(model, tp, sequence) for model in MODELS for tp, sequence in itertools.product((2, 4), (True, False))]
FAST = [case for k, case in enumerate(CASES) if k % 3 == 0 or case[0] == "gpt2"]
TOGETHER = [
    (model, stage, settings)
    for (model, settings), stage in zip(
        itertools.cycle(
            [
                ("llama", {}),
                ("qwen3 one key head", {"memory__checkpointing": "full"}),
                ("gpt2", {"memory__checkpointing": "selective"}),
                ("mistral", {}),
            ]
        ),
        (0, 1, 2, 3, 1, 2, 3, 0),
        strict=False,
    )
]


def steps_of(dp: int, pieces: tuple[int, ...] | None = None) -> list[list[Batch]]:
    return [make_batches(2 * dp, 331, seed, pieces) for seed in range(STEPS)]


def worst(recipe, steps, broken: str = "nothing") -> float:
    """The largest relative difference of loss or gradient norm on any rank, from one process."""
    alone = make_trainable(replace(recipe, {"parallel.tp": 1, "parallel.dp": 1, "parallel.zero": 0}))
    expected = [alone.step(batches, LR) for batches in steps]
    assert all(result.grad_norm > recipe.optim.clip for result in expected)  # clipping is part of it
    differences = []
    for results in ranks.run(recipe.parallel.world, trained, recipe, steps, broken):
        for mine, theirs in zip(results, expected, strict=True):
            assert (mine.labels, mine.tokens) == (theirs.labels, theirs.tokens)
            differences += [abs(mine.loss / theirs.loss - 1), abs(mine.grad_norm / theirs.grad_norm - 1)]
    return max(differences)


def check(model: str, tp: int, sequence: bool) -> None:
    assert worst(make_recipe(model, tp, sequence=sequence, optim__clip=0.1), steps_of(1)) <= CLOSE


@pytest.mark.parametrize(("model", "tp", "sequence"), FAST)
def test_losses_equal_one_process(model, tp, sequence):
    check(model, tp, sequence)


@pytest.mark.slow
@pytest.mark.parametrize(("model", "tp", "sequence"), [case for case in CASES if case not in FAST])
def test_losses_equal_one_process_for_every_model(model, tp, sequence):
    check(model, tp, sequence)


@pytest.mark.parametrize(("model", "stage", "settings"), TOGETHER)
@pytest.mark.parametrize("sequence", [True, False])
def test_losses_equal_one_process_beside_data_parallelism(model, stage, settings, sequence):
    recipe = make_recipe(model, 2, dp=2, sequence=sequence, optim__clip=0.1, parallel__zero=stage, **settings)
    assert worst(recipe, steps_of(2)) <= CLOSE


@pytest.mark.parametrize("model", ["llama", "mistral"])
def test_losses_equal_one_process_for_packed_rows(model):
    assert worst(make_recipe(model, 2, optim__clip=0.1), steps_of(1, (9, 20, 7))) <= CLOSE


ADAPTERS = {"techniques": {"lora": {"rank": 3, "alpha": 300.0}}, "optim__clip": 0.01}


@pytest.mark.parametrize(("model", "tp"), [("llama", 2), ("one key head", 4), ("gpt2", 2), ("qwen2 one key head", 2)])
@pytest.mark.parametrize("sequence", [True, False])
def test_losses_equal_one_process_with_adapters(model, tp, sequence):
    assert worst(make_recipe(model, tp, sequence=sequence, **ADAPTERS), steps_of(1)) <= CLOSE


@pytest.mark.parametrize(("model", "stage"), [("llama", 1), ("gpt2", 2), ("qwen3 one key head", 3)])
def test_losses_equal_one_process_with_adapters_beside_zero(model, stage):
    assert worst(make_recipe(model, 2, dp=2, parallel__zero=stage, **ADAPTERS), steps_of(2)) <= CLOSE


@pytest.mark.sabotage
@pytest.mark.parametrize("broken", ["norms not summed", "norm of one rank", "exponentials not summed"])
def test_parity_notices(broken):
    assert worst(make_recipe("qwen3 one key head", 2, optim__clip=0.1), steps_of(1), broken) > 10 * CLOSE
