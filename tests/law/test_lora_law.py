"""The law for low-rank adapters: every family, every way of keeping less, ZeRO on two ranks, whatever else learns."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import pytest

import ranks
from burnish import frozen_parts, simulate
from burnish.describe import Shapes
from burnish.ops.lora import Adapted
from burnish.recipe import Recipe
from burnish.techniques import lora
from zero_ranks import ROWS, described, live_peak, observed, predicted
from zero_ranks import make_recipe as small_recipe

sys.path.insert(0, str(Path(__file__).parent))
from test_family_law import FAMILIES, SAVED, make_recipe
from test_training_law import SETTINGS, compare, make_batches

RANK = {"rank": 3, "alpha": 5.0}
TARGETS: dict[str, tuple[str, ...]] = {
    "all": (),
    "q": ("q",),
    "k, v": ("attention.k", "v"),
    "o": ("o",),
    "mlp": ("mlp.*",),
    "down": ("down",),
    "up": ("mlp.up",),
}
LEARNING = (("norms",), ("biases",), ("embedding",), ("head",), ("norms", "biases", "embedding", "head"))
families = pytest.mark.parametrize("family", FAMILIES)


def with_adapters(family: str, settings: dict, **more: object) -> Recipe:
    return make_recipe(family, settings | {"techniques": {"lora": RANK | more}})


def check(recipe: Recipe, micro: int = 2) -> None:
    compare(recipe, Shapes(rows=3, seq=37, micro=micro), make_batches(micro, 3, 37, recipe.model.vocab))


@families
@pytest.mark.parametrize("settings", SETTINGS)
def test_predicted_equals_observed(family: str, settings: str) -> None:
    check(with_adapters(family, SETTINGS[settings]))


@families
@pytest.mark.parametrize("settings", ["plain", "selective"])
def test_predicted_equals_observed_in_16_bits(family: str, settings: str) -> None:
    check(with_adapters(family, SETTINGS[settings] | {"precision": "bf16"}, rslora=True))


@pytest.mark.parametrize("family", ["qwen2", "gpt2 untied", "qwen3"])
@pytest.mark.parametrize("targets", TARGETS)
@pytest.mark.parametrize("settings", ["plain", "full", "selective"])
def test_predicted_equals_observed_for_each_choice_of_matrices(family: str, targets: str, settings: str) -> None:
    check(with_adapters(family, SETTINGS[settings], targets=TARGETS[targets]), 1)


@pytest.mark.parametrize("family", ["mistral", "gpt2"])
@pytest.mark.parametrize("targets", TARGETS)
def test_predicted_equals_observed_for_one_layer(family: str, targets: str) -> None:
    check(with_adapters(family, {"model.layers": 1}, targets=TARGETS[targets]), 1)


@pytest.mark.parametrize("family", ["mistral wide window", "gpt2", "gpt2 untied", "mixtral"])
@pytest.mark.parametrize("learning", LEARNING)
@pytest.mark.parametrize("settings", ["plain", "selective"])
def test_predicted_equals_observed_where_more_learns(family: str, learning: tuple[str, ...], settings: str) -> None:
    check(with_adapters(family, SETTINGS[settings], train=learning, targets=("q", "o")), 1)


@families
@pytest.mark.parametrize(
    ("settings", "targets"), [("plain", "all"), ("full", "all"), ("selective", "all"), ("plain", "q")]
)
def test_predicted_equals_observed_for_packed_rows(family: str, settings: str, targets: str) -> None:
    recipe, pieces = with_adapters(family, SETTINGS[settings], targets=TARGETS[targets]), (9, 20, 12)
    shapes = Shapes(rows=2, seq=41, micro=1, pairs=2 * sum(n * n for n in pieces), packed=True)
    compare(recipe, shapes, make_batches(1, 2, 41, recipe.model.vocab, pieces))


@families
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_predicted_equals_observed_on_two_ranks(family: str, stage: int) -> None:
    on_two_ranks(family, stage)


def on_two_ranks(family: str, stage: int) -> None:
    mode = ("none", "none", "full", "selective")[stage]
    compute = "bf16" if family in ("llama", "qwen3 moe") else "fp32"
    settings = {"train.global_batch": 8 * ROWS, "train.micro_batch": ROWS, "parallel.dp": 2, "parallel.zero": stage}
    recipe = with_adapters(family, settings | {"memory.checkpointing": mode, "precision": compute})
    for rank, steps in enumerate(ranks.run(2, observed, recipe, 2, 2)):
        expected = predicted(recipe, 2, rank)
        for step in steps:
            assert step[SAVED] == pytest.approx(expected[SAVED], rel=0.02)
            assert dict(step) | {SAVED: 0} == dict(expected) | {SAVED: 0}, f"rank {rank}"


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_predicted_peak_is_a_close_ceiling(stage: int) -> None:
    """Buffers of gradients are as small as the adapters."""
    recipe = small_recipe("big vocabulary", False, 2, stage, techniques={"lora": RANK})
    ceiling = sum(simulate.step_bytes(described(recipe, 3, 0)).values())
    peak = ranks.run(2, live_peak, recipe, 3)[0]
    assert 0.8 < peak / ceiling < 1.03


def breaks(family: str = "llama", **more: object) -> bool:
    """Whether the law fails, as the tests above would see it."""
    try:
        check(with_adapters(family, {}, **more), 1)
    except AssertionError:
        return True
    return False


@pytest.mark.sabotage
def test_a_frozen_product_with_two_products_in_backward_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not breaks()
    right = lora.frozen
    monkeypatch.setattr(lora, "frozen", lambda op, *given: dataclasses.replace(right(op, *given), backward=op.backward))
    assert breaks()


@pytest.mark.sabotage
def test_a_backward_before_the_first_adapter_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not breaks()
    monkeypatch.setattr(lora, "_pieces", lambda block, stream: [block])
    assert breaks()


@pytest.mark.sabotage
def test_inputs_kept_for_frozen_matrices_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not breaks(targets=("q",))
    monkeypatch.setattr(frozen_parts, "INPUTS", ())
    assert breaks(targets=("q",))


@pytest.mark.sabotage
def test_a_base_weight_that_learns_too_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not breaks()
    monkeypatch.setattr(lora, "whole", lambda config, model: [model.layers[0].attention.q.weight])
    assert breaks()


@pytest.mark.sabotage
def test_narrow_products_that_are_kept_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = with_adapters("llama", SETTINGS["selective"])
    check(recipe)
    monkeypatch.setattr(Adapted, "narrow", ())
    with pytest.raises(AssertionError):
        check(recipe)
