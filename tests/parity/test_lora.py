"""Parity of low-rank adapters: with float64 spelled out, with PEFT's formula, with the base model, across ranks."""

from __future__ import annotations

from functools import partial
from unittest import mock

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import ranks
from burnish import apply
from burnish.data.batch import Batch
from burnish.models.decoder import Decoder
from burnish.models.layers import Linear
from burnish.ops import lora as ops
from burnish.recipe import Recipe
from burnish.techniques import lora
from burnish.train.loss import LanguageModelLoss, batch_tensors
from burnish.train.optim import build_optimizer
from burnish.train.step import Trainable, plain_trainable
from zero_ranks import SIZES, make_batches, make_recipe, mine, whole_weights

RANK = {"rank": 4, "alpha": 6.0}
CPU = torch.device("cpu")


def recipe_of(size: str = "odd", world: int = 1, stage: int = 0, **more: object) -> Recipe:
    return make_recipe(size, True, world, stage, techniques={"lora": RANK | more}, optim__weight_decay=0.0)


def trainable_of(recipe: Recipe, learned: bool = True) -> Trainable:
    """With adapters; `learned`: B is drawn too, as it is after some steps."""
    loss = LanguageModelLoss(Decoder(recipe.model, torch.Generator().manual_seed(0)))
    trainable = apply.apply(recipe, plain_trainable(loss, build_optimizer(loss, recipe.optim), recipe.optim.clip))
    if learned:
        draw = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for _, layer in ops.adapted(loss):
                layer.b.normal_(0, 0.1, generator=draw)
    return trainable


def spelled_out(module: ops.Adapted, x: Tensor, scale: float) -> Tensor:
    """Hu et al. 2021, equation 3, as PEFT's Linear has it: result + lora_B(lora_A(x)) * scaling."""
    return x @ module.weight.t() + ((x @ module.a.t()) @ module.b.t()) * scale


def gradients(loss: torch.nn.Module, batch: Batch) -> tuple[float, dict[str, Tensor]]:
    total = loss(*batch_tensors(batch, CPU))
    total.backward()
    return total.item(), {name: p.grad for name, p in loss.named_parameters() if p.grad is not None}


def against_float64(recipe: Recipe) -> tuple[float, float]:
    """Relative error of the loss and the largest one of a gradient, against float64 with the formula spelled out."""
    loss = trainable_of(recipe).parts[0]
    config = lora.Config(**recipe.techniques["lora"].model_dump())
    right = config.alpha / (np.sqrt(config.rank) if config.rslora else config.rank)
    (batch,) = make_batches(1, recipe.model.vocab)
    found, ours = gradients(loss, batch)
    wide = trainable_of(recipe).parts[0].double()
    for _, layer in ops.adapted(wide):
        layer.forward = partial(spelled_out, layer, scale=right)  # type: ignore[method-assign]
    wanted, theirs = gradients(wide, batch)
    assert ours.keys() == theirs.keys()
    assert {name.rpartition(".")[2] for name in ours} == {"a", "b"}
    worst = max((ours[name] - theirs[name]).norm() / theirs[name].norm() for name in ours)
    return abs(found / wanted - 1), float(worst)


@pytest.mark.parametrize("size", ["odd", "even"])
@pytest.mark.parametrize("rslora", [False, True])
@pytest.mark.parametrize("mode", ["none", "full", "selective"])
def test_loss_and_gradients_equal_a_float64_reference(size: str, rslora: bool, mode: str) -> None:
    recipe = make_recipe(size, True, 1, 0, techniques={"lora": RANK | {"rslora": rslora}}, memory__checkpointing=mode)
    loss, worst = against_float64(recipe)
    assert loss < 1e-6
    assert worst < 2e-5


def test_a_new_adapter_changes_nothing() -> None:
    recipe = recipe_of()
    plain = Decoder(recipe.model, torch.Generator().manual_seed(0))
    model = trainable_of(recipe, learned=False).parts[0].model
    ids = torch.randint(recipe.model.vocab, (2, 37))
    assert torch.equal(model.logits(model(ids)), plain.logits(plain(ids)))


def test_the_seed_of_the_run_draws_a() -> None:
    one, again, other = (
        whole_weights(trainable_of(recipe_of() if seed is None else recipe_of(seed=seed))) for seed in (None, 0, 7)
    )
    name = "model.layers.0.attention.q.a"
    assert np.array_equal(one[name], again[name])
    assert not np.array_equal(one[name], other[name])
    bound = 1 / np.sqrt(SIZES["odd"]["hidden"])
    assert 0.9 * bound < np.abs(one[name]).max() < bound


def frozen_stays(recipe: Recipe) -> None:
    """Five steps change no bit of what is frozen, and every adapter."""
    trainable = trainable_of(recipe, learned=False)
    before = {name: p.detach().clone() for name, p in trainable.parts[0].named_parameters()}
    for seed in range(5):
        trainable.step(make_batches(2, recipe.model.vocab, seed=seed), 0.01)
    for name, parameter in trainable.parts[0].named_parameters():
        assert torch.equal(parameter, before[name]) == (name.rpartition(".")[2] not in "ab"), name


def test_frozen_weights_do_not_change_one_bit() -> None:
    frozen_stays(recipe_of())


def test_what_is_named_learns_too() -> None:
    trainable = trainable_of(recipe_of(train=("norms",), targets=("q",)), learned=False)
    learning = {n.split(".")[-2] for n, p in trainable.parts[0].named_parameters() if p.requires_grad}
    assert learning == {"q", "norm", "attention_norm", "mlp_norm"}
    assert {p.dim() for group in trainable.optimizer.param_groups for p in group["params"]} == {1, 2}


def stepped(recipe: Recipe, steps: list[list[Batch]]) -> tuple[list[float], dict[str, np.ndarray]]:
    """On every rank: losses and weights after `steps` with this rank's part of each."""
    trainable = trainable_of(recipe, learned=False)
    return [trainable.step(mine(batches), 0.01).loss for batches in steps], whole_weights(trainable)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_five_steps_are_equal_on_one_and_two_ranks(stage: int) -> None:
    labels = [30, 5]
    steps = [make_batches(2, SIZES["odd"]["vocab"], labels, seed) for seed in range(5)]
    ((one, weights),) = ranks.run(1, stepped, recipe_of(), steps)
    for losses, theirs in ranks.run(2, stepped, recipe_of(world=2, stage=stage), steps):
        assert losses == pytest.approx(one, rel=1e-5)
        for name, value in weights.items():
            assert np.abs(theirs[name] - value).max() < 1e-5 * max(1, np.abs(value).max()), name


def test_16_bits_stay_near_the_float32_gradients() -> None:
    (batch,) = make_batches(1, SIZES["even"]["vocab"])
    _, wide = gradients(trainable_of(recipe_of("even")).parts[0], batch)
    half = make_recipe("even", True, 1, 0, techniques={"lora": RANK}, precision__compute="bf16")
    _, narrow = gradients(trainable_of(half).parts[0], batch)
    for name, gradient in wide.items():
        assert narrow[name].dtype == torch.float32
        assert (narrow[name] - gradient).norm() < 0.05 * gradient.norm(), name


@pytest.mark.sabotage
def test_an_adapter_without_its_scale_is_noticed() -> None:
    def unscaled(self: ops.Adapted, x: Tensor) -> Tensor:
        return F.linear(F.linear(x, self.a), self.b) + Linear.forward(self, x)

    with mock.patch.object(ops.Adapted, "forward", unscaled):
        _, worst = against_float64(recipe_of())
    assert worst > 1e-3


@pytest.mark.sabotage
def test_base_weights_that_learn_too_are_noticed() -> None:
    def all_of_them(config: lora.Config, model: Decoder) -> list[Tensor]:
        return [layer.attention.q.weight for layer in model.layers]

    with mock.patch.object(lora, "whole", all_of_them), pytest.raises(AssertionError, match=r"q\.weight"):
        frozen_stays(recipe_of())
