"""The law for pipelines: what each rank of each stage is observed to do equals what is predicted of it, to the byte."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import ranks
from burnish import simulate
from burnish.recipe import Recipe
from burnish.techniques import pipeline
from pipeline_ranks import described, live_peak, make_batches, make_recipe, observed, predicted

sys.path.insert(0, str(Path(__file__).parent))
from test_family_law import FAMILIES

SAVED = ("saved", "forward", "", "")
UNTIED = {"tied": False}
WINDOW = {"family": "qwen2", "window": 5, "window_from": 3}
GPIPE, CHUNKS = {"parallel__schedule": "gpipe"}, {"parallel__vpp": 2}
FULL, SELECTIVE = {"memory__checkpointing": "full"}, {"memory__checkpointing": "selective"}
EVERY = {"memory__checkpointing": {"mode": "every", "every": 2}}
BUDGET = {"memory__checkpointing": {"mode": "budget", "budget": "60 KiB"}}
SHARDED = [{"parallel__dp": 2, "parallel__zero": stage} for stage in (0, 1, 2, 3)]
BF16, FP16 = {"precision__compute": "bf16"}, {"precision__compute": "fp16"}
ADAPTERS = {"techniques": {"lora": {"rank": 4}}}
DIVISIBLE = {"heads": 4, "kv_heads": 2}
# Micro batches, stages, model, settings: each of them with some of the others.
CASES: dict[str, tuple[int, int, dict[str, Any], dict[str, Any]]] = {
    "1f1b": (2, 2, {}, {}),
    "gpipe untied": (3, 2, UNTIED, GPIPE),
    "chunks": (4, 2, {}, CHUNKS),
    "chunks untied full": (6, 2, UNTIED, CHUNKS | FULL),
    "four stages": (5, 4, {}, {}),
    "four stages of two chunks": (4, 4, {"layers": 9}, CHUNKS),
    "four stages gpipe selective": (6, 4, UNTIED, GPIPE | SELECTIVE),
    "bf16 every 2nd": (4, 2, {}, BF16 | EVERY),
    "budget": (4, 2, {}, BUDGET),
    "ends as layers": (4, 4, {"layers": 6}, {}),
    "replicas": (4, 2, {}, SHARDED[0]),
    "replicas of chunks": (4, 2, {}, SHARDED[0] | CHUNKS),
    "zero 1": (3, 2, {}, SHARDED[1]),
    "zero 1 of chunks": (4, 2, {}, SHARDED[1] | CHUNKS | FULL),
    "zero 1 fp16": (4, 2, UNTIED, SHARDED[1] | FP16),
    "zero 2": (3, 2, {}, SHARDED[2]),
    "zero 3": (3, 2, {}, SHARDED[3]),
    "zero 3 of chunks": (4, 2, UNTIED, SHARDED[3] | CHUNKS | SELECTIVE),
    "tensor": (4, 2, DIVISIBLE, {"parallel__tp": 2, "parallel__sequence": False}),
    "tensor of chunks": (4, 2, DIVISIBLE, {"parallel__tp": 2} | CHUNKS | FULL),
    "tensor untied selective": (3, 2, DIVISIBLE | UNTIED, {"parallel__tp": 2} | SELECTIVE),
    "tensor with one key head": (3, 2, {"heads": 4}, {"parallel__tp": 2} | BF16),
    "eight ranks": (4, 2, DIVISIBLE, {"parallel__tp": 2} | SHARDED[1] | CHUNKS),
    "eight stages": (8, 8, {"layers": 9}, {}),
    "adapters": (4, 2, {}, ADAPTERS | CHUNKS | {"parallel__dp": 2, "parallel__zero": 1}),
    "adapters untied full": (3, 2, UNTIED, ADAPTERS | FULL),
    "windows in later layers": (2, 2, WINDOW, {}),
    "windows in later chunks": (2, 2, WINDOW, CHUNKS),
}
FAST = ("chunks", "gpipe untied", "four stages", "zero 1 of chunks", "windows in later chunks", "zero 3 of chunks")


def recipe_of(name: str) -> Recipe:
    micro, stages, model, settings = CASES[name]
    layers = model.get("layers", 5)
    return make_recipe(micro, stages, layers, model, **settings)


def compare(recipe: Recipe, packed: bool = False, saved: float = 0.0) -> None:
    """The named check: two steps of every rank against the description of that rank; saved bytes within a share."""
    batches = make_batches(recipe, packed)
    for rank, steps in enumerate(ranks.run(recipe.parallel.world, observed, recipe, batches)):
        expected = predicted(recipe, rank, packed)
        for step in steps:
            assert step[SAVED] == pytest.approx(expected[SAVED], rel=saved, abs=0), f"rank {rank}"
            assert dict(step) | {SAVED: 0} == dict(expected) | {SAVED: 0}, f"rank {rank}"


@pytest.mark.parametrize("name", FAST)
def test_predicted_equals_observed_on_each_stage(name):
    compare(recipe_of(name))


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in CASES if name not in FAST])
def test_predicted_equals_observed_for_more_settings(name):
    compare(recipe_of(name))


@pytest.mark.slow
@pytest.mark.parametrize("schedule", [GPIPE, {}, CHUNKS])
@pytest.mark.parametrize("micro", [2, 4, 6])
@pytest.mark.parametrize("checkpointing", [{}, FULL, SELECTIVE])
@pytest.mark.parametrize("tied", [True, False])
def test_predicted_equals_observed_for_every_combination(tied, checkpointing, micro, schedule):
    compare(make_recipe(micro, 2, 5, {"tied": tied}, **schedule, **checkpointing))


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_predicted_equals_observed_for_every_family(family):
    compare(make_recipe(2, 2, 3, {"hidden": 56, "ffn": 48, "heads": 7} | FAMILIES[family]), saved=0.02)


@pytest.mark.parametrize("settings", [{}, pytest.param(CHUNKS | FULL, marks=pytest.mark.slow)])
def test_predicted_equals_observed_for_packed_rows(settings):
    compare(make_recipe(4, 2, **settings), packed=True)


@pytest.mark.parametrize("settings", [{}, pytest.param(GPIPE, marks=pytest.mark.slow), CHUNKS])
def test_what_stands_at_once_is_the_predicted_peak(settings):
    """Of eight micro batches the tensors of those in flight, not of all; GPipe has all."""
    check_peak(settings)


def check_peak(settings: dict[str, Any]) -> None:
    recipe = make_recipe(8, 2, 4, {"hidden": 48, "ffn": 128, "vocab": 61}, **settings)
    for rank, peak in enumerate(ranks.run(2, live_peak, recipe, make_batches(recipe))):
        ceiling = sum(simulate.step_bytes(described(recipe, rank)).values())
        assert 0.9 < peak / ceiling < 1.02, f"rank {rank}"


@pytest.mark.sabotage
@pytest.mark.parametrize("name", ["chunks", "four stages"])
def test_sabotage_a_stage_that_ends_one_layer_later_in_the_plan(name):
    chunks = pipeline.chunks

    def later(layers, mesh, head):
        for start, end in chunks(layers, mesh, head):
            yield start + (start > 0), end + (end < layers)

    with mock.patch.object(pipeline, "chunks", later), pytest.raises(AssertionError):
        compare(recipe_of(name))


@pytest.mark.sabotage
def test_sabotage_angles_that_only_the_first_stage_makes():
    def unchanged(blocks, layers, cuts):
        return blocks

    with mock.patch.object(pipeline, "_with_angles", unchanged), pytest.raises(AssertionError, match="rank 1"):
        compare(make_recipe(2, 2))


@pytest.mark.sabotage
def test_sabotage_a_copy_whose_gradient_is_not_sent():
    def silent(work, mesh):
        return tuple(
            pipeline.replace(block, ops=tuple(pipeline.replace(op, partial=()) for op in block.ops))
            for block in with_copy(work, mesh)
        )

    with_copy = pipeline._with_copy
    with mock.patch.object(pipeline, "_with_copy", silent), pytest.raises(AssertionError, match="rank 0"):
        compare(make_recipe(2, 2))


@pytest.mark.sabotage
def test_sabotage_tensors_of_all_micro_batches_kept():
    with mock.patch.object(pipeline, "in_flight", return_value=8), pytest.raises(AssertionError):
        check_peak({})
