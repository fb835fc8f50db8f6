"""The law for encoders: what a step of training a classifier is observed to do equals what the description predicts."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import ranks
from burnish.apply import predict
from burnish.encoders import describe as description
from burnish.encoders.config import EncoderConfig
from burnish.encoders.describe import describe_encoder
from burnish.errors import UserError
from burnish.measure import observe
from burnish.models.encoder import Encoder
from burnish.ops import recompute
from burnish.recipe import Recipe
from burnish.shapes import Shapes
from burnish.techniques import checkpointing
from burnish.train.classification import ClassificationLoss, with_head
from burnish.work import Op, fold
from encoder_ranks import (
    HEADS,
    SIZES,
    described,
    make_batches,
    make_config,
    make_recipe,
    make_trainable,
    observed,
    trained,
)

SAVED = ("saved", "forward", "", "")
SETTINGS = {
    "plain": {},
    "full": {"memory.checkpointing": "full"},
    "every 2nd": {"memory.checkpointing": {"mode": "every", "every": 2}},
    "selective": {"memory.checkpointing": "selective"},
}
PIECES = (9, 20, 8, 4)


def compare(config: EncoderConfig, recipe: Recipe, shapes: Shapes, batches: list) -> None:
    plain = describe_encoder(config, shapes)
    predicted = fold(predict(recipe, plain)[0])
    seen = observe(make_trainable(config, recipe, plain), batches, 1e-3)
    assert seen[SAVED] == pytest.approx(predicted[SAVED], rel=0.02)
    assert dict(seen) | {SAVED: 0} == dict(predicted) | {SAVED: 0}


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("micro", [1, 3])
def test_predicted_equals_observed(size, head, settings, micro):
    config = make_config(size, head)
    compare(config, make_recipe(SETTINGS[settings]), Shapes(3, 37, micro), make_batches(config, micro, 3, 37))


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("settings", SETTINGS)
def test_predicted_equals_observed_for_packed_rows(head, settings):
    packed(make_config("odd", head), settings)


def packed(config: EncoderConfig, settings: str) -> None:
    """The named check: two rows of several texts each."""
    pairs = 2 * sum(n * n for n in PIECES)
    shapes = Shapes(2, 41, 2, pairs=pairs, pieces=2 * len(PIECES), packed=True)
    compare(config, make_recipe(SETTINGS[settings]), shapes, make_batches(config, 2, 2, 41, PIECES))


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("settings", SETTINGS)
def test_predicted_equals_observed_for_a_ragged_last_micro_batch(head, settings):
    config = make_config("odd", head)
    batches = make_batches(config, 2, 5, 23) + make_batches(config, 1, 2, 23)
    compare(config, make_recipe(SETTINGS[settings]), Shapes(5, 23, 3, rest=2), batches)


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("compute", ["bf16", "fp16"])
def test_predicted_equals_observed_in_16_bits(compute, settings):
    config = make_config("odd")
    recipe = make_recipe({"precision.compute": compute} | SETTINGS[settings])
    compare(config, recipe, Shapes(3, 37, 2), make_batches(config, 2, 3, 37))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("settings", SETTINGS)
def test_saved_bytes_are_exact_in_float32(size, settings):
    config, recipe = make_config(size), make_recipe(SETTINGS[settings])
    plain = described(config, 1)
    seen = observe(make_trainable(config, recipe, plain), make_batches(config, 1, 3, 37), 1e-3)
    assert seen[SAVED] == fold(predict(recipe, plain)[0])[SAVED]


# Each stage with each of the other choices in turn.
GRID = [
    (1, "odd", "texts", "plain", 1),
    (1, "even", "tokens", "full", 3),
    (2, "odd", "texts", "selective", 3),
    (2, "relu", "tokens", "plain", 1),
    (3, "odd", "roberta", "full", 2),
    (3, "even", "texts", "every 2nd", 1),
    (0, "odd", "texts", "plain", 2),
]


@pytest.mark.parametrize(("stage", "size", "head", "settings", "micro"), GRID)
def test_predicted_equals_observed_on_two_ranks(stage, size, head, settings, micro):
    config, recipe = make_config(size, head), make_recipe(SETTINGS[settings], world=2, stage=stage)
    for rank, steps in enumerate(ranks.run(2, observed, config, recipe, micro)):
        expected = fold(predict(recipe, described(config, micro), rank)[0])
        for step in steps:
            assert step[SAVED] == pytest.approx(expected[SAVED], rel=0.02)
            assert dict(step) | {SAVED: 0} == dict(expected) | {SAVED: 0}, f"rank {rank}"


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_two_ranks_train_as_one_process(stage):
    config = make_config("odd")
    steps = [make_batches(config, 2, 3, 37, seed=number) for number in range(3)]
    alone = make_trainable(config, make_recipe({}), None)
    wanted = [alone.step(batches, 0.01) for batches in steps]
    for results, weights in ranks.run(2, trained, config, make_recipe({}, world=2, stage=stage), steps):
        assert [r.loss for r in results] == pytest.approx([r.loss for r in wanted], rel=1e-5)
        assert [r.labels for r in results] == [6, 6, 6]
        for name, tensor in alone.parts[0].state_dict().items():
            np.testing.assert_allclose(weights[name], tensor.numpy(), atol=2e-5, err_msg=name)


@pytest.mark.parametrize("settings", ["full", "every 2nd", "selective"])
def test_checkpointing_changes_no_gradient(settings):
    config = make_config("odd")
    batch = make_batches(config, 1, 2, 41, PIECES)[0]
    found = []
    for chosen in ("plain", settings):
        trainable = make_trainable(config, make_recipe(SETTINGS[chosen]), described(config, 1))
        assert trainable.step([batch], 0.01).labels == 6
        found.append(trainable.parts[0].state_dict())
    for name, tensor in found[0].items():
        assert torch.equal(tensor, found[1][name]), name


def test_the_loss_is_that_of_each_text_alone_in_float64():
    config = make_config("odd")
    model = Encoder(config, torch.Generator().manual_seed(0)).double()
    batch = make_batches(config, 1, 2, 41, PIECES)[0]
    loss = ClassificationLoss(model)(*(torch.from_numpy(x) for x in (batch.ids, batch.labels)), None, batch.segments)
    wanted, counted = 0.0, 0
    for row, labels in zip(torch.from_numpy(batch.ids), batch.labels, strict=True):
        for text, label in zip(row.split(list(PIECES)), labels[np.cumsum((0, *PIECES))[:-1]], strict=True):
            if label >= 0:
                pooled = torch.tanh(F.linear(model(text[None])[0, 0], model.pooler.weight, model.pooler.bias))
                wanted -= F.linear(pooled, model.head.weight, model.head.bias).log_softmax(-1)[label].item()
                counted += 1
    assert counted == batch.label_count == 6
    assert loss.item() == pytest.approx(wanted, rel=1e-12)


def test_a_class_that_stands_behind_the_first_position_is_refused():
    config = make_config("odd")
    ids = torch.zeros(2, 5, dtype=torch.long)
    labels = torch.tensor([[0, -100, -100, -100, -100], [-100, 1, -100, -100, -100]])
    with pytest.raises(UserError, match="stands at its first position"):
        ClassificationLoss(Encoder(config))(ids, labels)


def test_an_encoder_without_a_head_is_not_trained():
    config = EncoderConfig(**SIZES["odd"])
    with pytest.raises(UserError, match="no head"):
        ClassificationLoss(Encoder(config))


@pytest.mark.parametrize("tokens", [False, True])
def test_a_new_head_keeps_the_body(tokens):
    config = EncoderConfig(**SIZES["odd"], pooler=False)
    body = Encoder(config, torch.Generator().manual_seed(1))
    made, read = with_head(body, config, ("a", "b"), tokens=tokens, generator=torch.Generator().manual_seed(2))
    assert (read.labels, read.pooler, made.head.weight.shape) == (("a", "b"), not tokens, (2, 35))
    ids = torch.arange(12).view(2, 6)
    assert torch.equal(made(ids), body(ids))
    assert 0.01 < made.head.weight.std() < 0.03


def breaks_the_law(settings: str, size: str = "odd") -> bool:
    """Whether the law fails for packed rows, the way the tests above would see it."""
    try:
        packed(make_config(size), settings)
    except AssertionError:
        return True
    return False


def _norm_without_a_product(module: nn.Module) -> nn.Module:
    return module.mlp.down


def _forget(name: str):
    """The description without what one operation of a layer saves."""
    right = description._layer

    def layer(*given) -> tuple[Op, ...]:
        return tuple(
            op if op.name != name else Op(op.name, op.shapes, op.flops, op.backward, group=op.group)
            for op in right(*given)
        )

    return layer


@pytest.mark.sabotage
@pytest.mark.parametrize("name", ["attention_norm", "up", "activation", "down", "mlp_norm"])
def test_a_saved_tensor_that_is_forgotten_is_noticed(name, monkeypatch):
    assert not breaks_the_law("plain")
    monkeypatch.setattr(description, "_layer", _forget(name))
    assert breaks_the_law("plain")


@pytest.mark.sabotage
def test_a_product_taken_for_unread_is_noticed(monkeypatch):
    assert not breaks_the_law("full")
    monkeypatch.setattr(checkpointing, "_read_on", lambda block: False)
    assert breaks_the_law("full")
    assert breaks_the_law("selective")


@pytest.mark.sabotage
def test_a_product_that_is_run_again_for_its_norm_is_noticed(monkeypatch):
    assert not breaks_the_law("selective")
    monkeypatch.setattr(recompute, "_last_product", _norm_without_a_product)
    assert breaks_the_law("selective")


@pytest.mark.sabotage
def test_a_pooled_wrong_position_is_noticed(monkeypatch):
    right = Encoder.pooled
    monkeypatch.setattr(Encoder, "pooled", lambda self, hidden, first: right(self, hidden, first + 1))
    with pytest.raises(AssertionError):
        test_the_loss_is_that_of_each_text_alone_in_float64()
