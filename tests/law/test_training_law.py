"""The law for training: what a step is observed to do equals what the description predicts."""

from functools import partial

import numpy as np
import pytest
import torch

from burnish.apply import apply, predict
from burnish.config import ModelConfig
from burnish.data.batch import Batch
from burnish.describe import Shapes, describe
from burnish.errors import BudgetNotMet
from burnish.measure import observe
from burnish.mesh import Mesh
from burnish.models.decoder import Decoder
from burnish.models.rotary import Rotary
from burnish.ops import recompute
from burnish.recipe import Recipe, replace
from burnish.recipe_files import load
from burnish.techniques import checkpointing
from burnish.train.loss import LanguageModelLoss
from burnish.train.optim import build_optimizer
from burnish.train.step import Trainable, plain_trainable
from burnish.work import Work, fold, saved_bytes

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


def make_trainable(recipe: Recipe, work: Work | None = None) -> Trainable:
    torch.manual_seed(0)
    loss = LanguageModelLoss(Decoder(recipe.model))
    return apply(recipe, plain_trainable(loss, build_optimizer(loss, recipe.optim), recipe.optim.clip), work)


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
    plain = describe(recipe.model, shapes)
    work, _ = predict(recipe, plain)
    predicted, observed = fold(work), observe(make_trainable(recipe, plain), batches, 1e-3)
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


@pytest.mark.parametrize("settings", ["plain", "full", "selective"])
def test_predicted_equals_observed_for_a_ragged_last_micro_batch(settings: str) -> None:
    recipe = make_recipe("odd", True, SETTINGS[settings])
    batches = make_batches(2, 5, 23, recipe.model.vocab) + make_batches(1, 2, 23, recipe.model.vocab)
    compare(recipe, Shapes(rows=5, seq=23, micro=3, rest=2), batches)


# Bytes saved by the "odd" model for 3 rows of 37: 1,707,028 with nothing recomputed, 250,708 with everything.
@pytest.mark.parametrize(
    ("budget", "chosen"),
    [("2 MiB", "none"), (1_707_028, "none"), (1_707_027, "selective"), ("1000 KiB", "every 2"), (250_708, "full")],
)
def test_a_budget_is_met_by_the_least_recomputation(budget: str | int, chosen: str) -> None:
    recipe = make_recipe("odd", True, {"memory.checkpointing": {"mode": "budget", "budget": budget}})
    shapes = Shapes(rows=3, seq=37, micro=2)
    work, passes = predict(recipe, describe(recipe.model, shapes))
    assert saved_bytes(work) <= recipe.memory.checkpointing.budget
    assert passes[0].reason.endswith(f"chosen: {chosen}")
    compare(recipe, shapes, make_batches(2, 3, 37, recipe.model.vocab))


def test_a_budget_out_of_reach_is_refused_with_the_least_there_is() -> None:
    recipe = make_recipe("odd", True, {"memory.checkpointing": {"mode": "budget", "budget": 250_707}})
    with pytest.raises(BudgetNotMet, match="250,708 bytes"):
        predict(recipe, describe(recipe.model, Shapes(rows=3, seq=37)))


@pytest.mark.parametrize("settings", [*SETTINGS, "budget"])
def test_many_micro_batches_at_once_are_predicted_as_one_by_one(settings: str) -> None:
    config = {**SETTINGS, "budget": {"memory.checkpointing": {"mode": "budget", "budget": "1 MiB"}}}[settings]
    recipe = make_recipe("odd", True, config)
    rows = np.array([1, 2, 3, 4, 5], dtype=np.int64)

    def predicted(count: int | np.ndarray) -> Work:
        work = describe(recipe.model, Shapes(rows=count, seq=37))
        return checkpointing.predict(recipe.memory.checkpointing, work, Mesh())

    together = fold(predicted(rows))
    for index, count in enumerate(rows.tolist()):
        alone = fold(predicted(count))
        assert {k: int(np.broadcast_to(v, rows.shape)[index]) for k, v in together.items()} == {
            k: alone[k] for k in together
        }


@pytest.mark.parametrize(
    ("model", "shapes"),
    [
        ({"hidden": 512, "ffn": 1408, "heads": 8, "kv_heads": 4, "layers": 8, "vocab": 2048}, Shapes(2, 512)),
        ({"hidden": 4096, "ffn": 14336, "heads": 32, "kv_heads": 8, "layers": 32, "vocab": 128256}, Shapes(8, 8192)),
    ],
)
def test_bars_of_checkpointing(model: dict, shapes: Shapes) -> None:
    config = ModelConfig(**model, head_dim=model["hidden"] // model["heads"], tied=True, max_positions=8192)

    def totals(mode: str) -> tuple[int, int]:
        work = checkpointing.predict(checkpointing.Config(mode=mode), describe(config, shapes), Mesh())
        return sum(v for k, v in fold(work).items() if k[0] == "flops"), saved_bytes(work)

    flops, saved = totals("none")
    full_flops, full_saved = totals("full")
    selective_flops, selective_saved = totals("selective")
    assert 1.15 < full_flops / flops <= 4 / 3
    assert full_saved <= 0.15 * saved
    assert selective_flops == flops
    assert selective_saved < 0.75 * saved


def breaks_the_law(settings: str, size: str = "wide heads") -> bool:
    """Whether the law fails for packed rows, the way the tests above would see it."""
    recipe, pieces = make_recipe(size, True, SETTINGS[settings]), (9, 20, 12)
    shapes = Shapes(rows=2, seq=41, micro=1, pairs=2 * sum(n * n for n in pieces), packed=True)
    try:
        compare(recipe, shapes, make_batches(1, 2, 41, recipe.model.vocab, pieces))
    except AssertionError:
        return True
    return False


@pytest.mark.sabotage
@pytest.mark.parametrize("settings", ["full", "every 2nd"])
def test_forgotten_recomputation_is_noticed(settings: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not breaks_the_law(settings)
    monkeypatch.setattr(checkpointing, "_recomputed", lambda block: checkpointing._kept(block, {}))
    assert breaks_the_law(settings)


@pytest.mark.sabotage
def test_angles_that_a_checkpointed_layer_hides_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not breaks_the_law("full")
    whole = partial(recompute.tree_flatten, is_leaf=lambda value: isinstance(value, Rotary))
    monkeypatch.setattr(recompute, "tree_flatten", whole)
    assert breaks_the_law("full")


@pytest.mark.sabotage
def test_a_last_product_kept_for_nothing_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recompute, "_last_product", lambda module: None)
    assert breaks_the_law("selective")
