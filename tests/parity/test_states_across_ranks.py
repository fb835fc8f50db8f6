"""A checkpoint of any mapping loads on any other: the same tensors to the bit, and the next losses of one process."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import ranks
import state_ranks
import zero_ranks
from burnish.export.safetensors import save_folder
from burnish.runnable import load_best
from burnish.train.step import StepResult
from state_ranks import MAPPINGS, dtype_of, mapped, steps, whole_tensors

CLOSE = {torch.float64: 1e-10, torch.float32: 1e-6}
FAST = ["one", "dp 2, stage 3", "tp 2", "dp 4, stage 2", "one"]
SAME_WEIGHTS = ["after/step-000004", "before/step-000004"]  # as four ranks wrote them, and as one did


def alone(count: int, tied: bool, **settings: object) -> list[StepResult]:
    recipe, _ = mapped("one", tied, **settings)
    trainable = zero_ranks.make_trainable(recipe, dtype=dtype_of(recipe))
    return [trainable.step(batches, 0.01) for batches in steps(0, count)]


def chained(names: list[str], tmp_path: Path, tied: bool, broken: str = "nothing", **settings: object) -> None:
    """One step on each mapping in turn, each going on from the checkpoint of the one before."""
    expected = alone(len(names), tied, **settings)
    old: Path | None = None
    for number, name in enumerate(names):
        recipe, world = mapped(name, tied, **settings)
        breaking = broken if number == 1 else "nothing"
        answers = ranks.run(world, state_ranks.stretch, recipe, steps(number, 1), tmp_path, old, number, breaking)
        results, before, after = answers[0]
        assert {answer[0][0].loss for answer in answers} == {results[0].loss}
        if old is not None:
            first, again = whole_tensors(old), whole_tensors(before)
            assert first.keys() == again.keys()
            for key, value in first.items():
                assert np.array_equal(value, again[key]), f"{key} on {name}"
        close = CLOSE[dtype_of(recipe)]
        assert results[0].loss == pytest.approx(expected[number].loss, abs=close), name
        assert results[0].grad_norm == pytest.approx(expected[number].grad_norm, rel=10 * close), name
        old = after


def test_flt_012_from_one_to_two_to_four_and_back(tmp_path: Path) -> None:
    chained(FAST, tmp_path, tied=True)
    made = [exported(tmp_path / folder, tmp_path / f"model {k}") for k, folder in enumerate(SAME_WEIGHTS)]
    assert made[0] == made[1]


@pytest.mark.slow
def test_from_four_parts_to_one_to_three_copies_to_eight_ranks(tmp_path: Path) -> None:
    chained(["tp 2, pp 2", "one", "dp 3, stage 1", "dp 2, tp 2, pp 2", "one"], tmp_path, tied=True)


def exported(checkpoint: Path, folder: Path) -> bytes:
    """The weights file of the model folder that a checkpoint becomes."""
    recipe, _ = mapped("one")
    save_folder(load_best(recipe, checkpoint), recipe.model, folder)
    return (folder / "model.safetensors").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("tied", [True, False])
def test_a_run_that_changes_its_ranks_at_every_step(tmp_path: Path, tied: bool) -> None:
    chained([*MAPPINGS, "one"], tmp_path, tied)


@pytest.mark.slow
def test_masters_of_a_bf16_run_go_with_it(tmp_path: Path) -> None:
    """On one rank they stand in the optimizer, in ZeRO they are the shards."""
    names = ["one", "dp 2, stage 3", "dp 2", "dp 4, stage 1 in pairs", "one"]
    chained(names, tmp_path, tied=True, precision__compute="bf16")


@pytest.mark.sabotage
@pytest.mark.parametrize("broken", ["a shard put where the first one lies", "moments left out"])
def test_a_break_is_noticed(tmp_path: Path, broken: str) -> None:
    with pytest.raises((AssertionError, ranks.RankError)):
        chained(["one", "dp 2, stage 3", "one"], tmp_path, tied=True, broken=broken)
