"""The law for every family of decoders: one rank, checkpointing, ZeRO on two ranks."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import ranks
from burnish import decoder_parts
from burnish.config import ModelConfig
from burnish.describe import Shapes, describe
from burnish.models import experts
from burnish.recipe import Recipe, replace
from burnish.recipe_files import load
from burnish.work import fold
from zero_ranks import ROWS, SEQ, observed, predicted

sys.path.insert(0, str(Path(__file__).parent))
from test_training_law import SETTINGS, compare, make_batches

SAVED = ("saved", "forward", "", "")
SIZES = {"vocab": 331, "hidden": 56, "ffn": 117, "heads": 7, "layers": 3, "head_dim": 8, "max_positions": 64}
FULL = {"kv_heads": 7}
ROUTED = {"ffn": 29, "experts": 5, "topk": 2, "kv_heads": 1}
FAMILIES = {
    "llama": {"kv_heads": 1, "rope_scaling": {"kind": "linear", "factor": 2.0}},
    "mistral": {"family": "mistral", "kv_heads": 1, "window": 11},
    "mistral wide window": {"family": "mistral", "kv_heads": 7, "window": 48, "tied": False},
    "qwen2": {"family": "qwen2", "kv_heads": 1, "tied": False},
    "qwen2 window": {"family": "qwen2", "kv_heads": 7, "window": 5, "window_from": 2},
    "qwen3": {"family": "qwen3", "kv_heads": 1},
    "gpt2": {"family": "gpt2", **FULL},
    "gpt2 untied": {"family": "gpt2", "tied": False, **FULL},
    "mixtral": {"family": "mixtral", **ROUTED},
    "mixtral window": {"family": "mixtral", **ROUTED, "window": 9, "topk": 1, "tied": False},
    "qwen3 moe": {"family": "qwen3_moe", **ROUTED, "topk": 3, "norm_topk": False},
}
families = pytest.mark.parametrize("family", FAMILIES)


def make_recipe(family: str, settings: dict) -> Recipe:
    model = ModelConfig(**SIZES | FAMILIES[family])
    return replace(load("quickstart").model_copy(update={"model": model}), {"data.seq": SEQ} | settings)


@families
@pytest.mark.parametrize("settings", SETTINGS)
def test_predicted_equals_observed(family: str, settings: str) -> None:
    recipe = make_recipe(family, SETTINGS[settings])
    compare(recipe, Shapes(rows=3, seq=37, micro=2), make_batches(2, 3, 37, recipe.model.vocab))


@families
@pytest.mark.parametrize("settings", ["plain", "full", "selective"])
def test_predicted_equals_observed_for_packed_rows(family: str, settings: str) -> None:
    recipe, pieces = make_recipe(family, SETTINGS[settings]), (9, 20, 12)
    shapes = Shapes(rows=2, seq=41, micro=1, pairs=2 * sum(n * n for n in pieces), packed=True)
    compare(recipe, shapes, make_batches(1, 2, 41, recipe.model.vocab, pieces))


@families
def test_predicted_equals_observed_for_a_ragged_last_micro_batch(family: str) -> None:
    recipe = make_recipe(family, {})
    batches = make_batches(1, 5, 23, recipe.model.vocab) + make_batches(1, 2, 23, recipe.model.vocab)
    compare(recipe, Shapes(rows=5, seq=23, micro=2, rest=2), batches)


@families
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_predicted_equals_observed_on_two_ranks(family: str, stage: int) -> None:
    on_two_ranks(family, stage)


def on_two_ranks(family: str, stage: int) -> None:
    settings = {"train.global_batch": 8 * ROWS, "train.micro_batch": ROWS, "parallel.dp": 2, "parallel.zero": stage}
    mode = ("none", "full", "selective")[stage - 1]
    recipe = make_recipe(family, settings | {"memory.checkpointing": mode})
    for rank, steps in enumerate(ranks.run(2, observed, recipe, 2, 2)):
        expected = predicted(recipe, 2, rank)
        for step in steps:
            assert step[SAVED] == pytest.approx(expected[SAVED], rel=0.02)
            assert dict(step) | {SAVED: 0} == dict(expected) | {SAVED: 0}, f"rank {rank}"


@families
def test_the_description_counts_every_parameter(family: str) -> None:
    config = ModelConfig(**SIZES | FAMILIES[family])
    elements = sum(layers * int(np.prod(shape)) for layers, shape in describe(config, Shapes(1, 1)).shapes())
    assert elements == config.parameters


def test_routed_tokens_cost_what_they_cost_wherever_they_go() -> None:
    """All tokens to the same experts, or spread: the same FLOPs, and bytes saved."""
    recipe = make_recipe("mixtral", {})
    batches = make_batches(1, 3, 37, recipe.model.vocab)
    for batch in batches:
        batch.ids[:] = 7
    compare(recipe, Shapes(rows=3, seq=37), batches)


def breaks(family: str, settings: str = "plain") -> bool:
    try:
        test_predicted_equals_observed(family, settings)
    except AssertionError:
        return True
    return False


@pytest.mark.sabotage
@pytest.mark.parametrize("family", ["qwen2", "gpt2"])
def test_a_forgotten_bias_is_noticed(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not breaks(family)
    monkeypatch.setattr(decoder_parts, "vector", lambda flag, size: ())
    assert breaks(family)


@pytest.mark.sabotage
def test_forgotten_head_norms_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not breaks("qwen3")
    monkeypatch.setattr(decoder_parts, "_head_norms", lambda model, tokens: ())
    assert breaks("qwen3")


@pytest.mark.sabotage
def test_weights_of_experts_made_after_the_last_product_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The product's result would have to be kept."""
    assert not breaks("mixtral")

    class After(torch.nn.Module):
        @staticmethod
        def apply(wide: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            gate, up = wide.chunk(2, -1)
            return torch.nn.functional.silu(gate) * up * weight

    monkeypatch.setattr(experts, "_WeightedGatedSilu", After)
    assert breaks("mixtral")


@pytest.mark.sabotage
def test_a_mask_made_in_every_layer_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    from burnish.models import attention, decoder

    right = attention.attend
    recipe = make_recipe("mistral", {})
    given = recipe, Shapes(rows=1, seq=60), make_batches(1, 1, 60, recipe.model.vocab)
    compare(*given)

    def attend(q, k, v, pattern):
        return right(q, k, v, pattern if pattern.mask is None else pattern._replace(mask=pattern.mask + 0.0))

    monkeypatch.setattr(decoder, "attend", attend)
    with pytest.raises(AssertionError):
        compare(*given)


def test_fold_of_a_window_counts_its_mask_once() -> None:
    narrow, wide = (ModelConfig(**SIZES | FAMILIES["mistral"] | {"window": size}) for size in (11, 64))
    shapes = Shapes(rows=3, seq=37)
    assert fold(describe(narrow, shapes))[SAVED] - fold(describe(wide, shapes))[SAVED] == 4 * 37 * 37
