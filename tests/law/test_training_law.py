"""The law for training: what a step is observed to do equals what the description predicts."""

import numpy as np
import pytest
import torch

from burnish.apply import apply, predict
from burnish.config import ModelConfig
from burnish.data.batch import Batch
from burnish.describe import Shapes, describe
from burnish.measure import observe
from burnish.models.decoder import Decoder
from burnish.recipe import Recipe, replace
from burnish.recipe_files import load
from burnish.train.loss import LanguageModelLoss
from burnish.train.optim import build_optimizer
from burnish.train.step import Trainable, plain_trainable
from burnish.work import fold

SIZES = {
    "even": {"vocab": 320, "hidden": 64, "ffn": 160, "heads": 4, "kv_heads": 2, "layers": 3, "head_dim": 16},
    "odd": {"vocab": 331, "hidden": 56, "ffn": 117, "heads": 7, "kv_heads": 1, "layers": 5, "head_dim": 8},
    "wide heads": {"vocab": 300, "hidden": 48, "ffn": 96, "heads": 3, "kv_heads": 3, "layers": 2, "head_dim": 32},
}
SETTINGS = {
    "plain": {},
    "full": {"memory.checkpointing": "full"},
    "every 2nd": {"memory.checkpointing": {"mode": "every", "every": 2}},
    "selective": {"memory.checkpointing": "selective"},
}


def make_recipe(size: str, tied: bool, settings: dict) -> Recipe:
    """A recipe of the named size; only its model and techniques matter here."""
    base = load("quickstart")
    model = ModelConfig(**SIZES[size], tied=tied, max_positions=512)
    return replace(base.model_copy(update={"model": model}), settings)


def make_trainable(recipe: Recipe) -> Trainable:
    torch.manual_seed(0)
    loss = LanguageModelLoss(Decoder(recipe.model))
    return apply(recipe, plain_trainable(loss, build_optimizer(loss, recipe.optim), recipe.optim.clip))


def make_batches(micro: int, rows: int, seq: int, vocab: int, pieces: tuple | None = None) -> list[Batch]:
    draw = np.random.default_rng(0)
    positions = np.arange(seq) if pieces is None else np.concatenate([np.arange(n) for n in pieces])
    batches = []
    for _ in range(micro):
        ids, labels = draw.integers(0, vocab, (2, rows, seq))
        labels[:, -2:] = -100
        batches.append(Batch(ids, labels, np.tile(positions, (rows, 1)), (pieces,) * rows if pieces else None))
    return batches


def compare(recipe: Recipe, shapes: Shapes, batches: list[Batch]) -> None:
    work, _ = predict(recipe, describe(recipe.model, shapes))
    predicted, observed = fold(work), observe(make_trainable(recipe), batches, 1e-3)
    saved = ("saved", "forward", "", "")
    assert observed[saved] == pytest.approx(predicted[saved], rel=0.02)
    assert {k: v for k, v in observed.items() if k != saved} == {k: v for k, v in predicted.items() if k != saved}


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("micro", [1, 3])
def test_predicted_equals_observed(size: str, tied: bool, settings: str, micro: int) -> None:
    recipe = make_recipe(size, tied, SETTINGS[settings])
    compare(recipe, Shapes(rows=3, seq=37, micro=micro), make_batches(micro, 3, 37, recipe.model.vocab))


@pytest.mark.parametrize("settings", SETTINGS)
def test_predicted_equals_observed_for_packed_rows(settings: str) -> None:
    recipe = make_recipe("odd", True, SETTINGS[settings])
    pieces = (9, 20, 12)
    shapes = Shapes(rows=2, seq=41, micro=2, pairs=2 * sum(n * n for n in pieces), packed=True)
    compare(recipe, shapes, make_batches(2, 2, 41, recipe.model.vocab, pieces))


@pytest.mark.parametrize("settings", ["plain", "full"])
def test_predicted_equals_observed_for_a_ragged_last_micro_batch(settings: str) -> None:
    recipe = make_recipe("odd", True, SETTINGS[settings])
    batches = make_batches(2, 5, 23, recipe.model.vocab) + make_batches(1, 2, 23, recipe.model.vocab)
    compare(recipe, Shapes(rows=5, seq=23, micro=3, rest=2), batches)
