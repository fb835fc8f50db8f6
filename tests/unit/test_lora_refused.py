"""What adapters are refused for: targets, ranks, and techniques that divide layers; and what a plan says of them."""

from __future__ import annotations

import pytest

from burnish import apply
from burnish.config import ModelConfig
from burnish.describe import describe, shapes_of
from burnish.errors import UserError
from burnish.plan import make_plan
from burnish.recipe import Recipe, replace
from burnish.recipe_files import load

ROUTED = {"family": "mixtral", "vocab": 300, "hidden": 32, "ffn": 24, "heads": 4, "kv_heads": 2, "layers": 2}
EXPERTS = ROUTED | {"experts": 4, "topk": 2}


def recipe(model: dict | None = None, **lora: object) -> Recipe:
    base = load("quickstart")
    if model:
        base = base.model_copy(update={"model": ModelConfig(**model)})
    return replace(base, {"techniques": {"lora": lora}})


REFUSED = {
    "qq": "no matrix 'qq'; did you mean 'q'?; there are attention.q, attention.k",
    "attention.query": "no matrix 'attention.query'; did you mean 'attention.",
    "embed": "embed: an embedding is looked up, not multiplied; name it in techniques.lora.train to train it whole",
    "head": "head: the loss multiplies with it in pieces",
}


@pytest.mark.parametrize("target", REFUSED)
def test_a_target_that_is_no_matrix(target: str) -> None:
    with pytest.raises(UserError) as caught:
        make_plan(recipe(targets=("q", target)))
    assert str(caught.value).startswith(f"techniques.lora.targets: {REFUSED[target]}")
    assert "mlp.down" in str(caught.value)


@pytest.mark.parametrize(("target", "why"), [("mlp.up", "reads a part of it"), ("router", "a choice has no gradient")])
def test_experts_are_refused_with_the_reason(target: str, why: str) -> None:
    with pytest.raises(UserError, match=why) as caught:
        make_plan(recipe(EXPERTS, targets=(target,), rank=2))
    assert str(caught.value).endswith("there are attention.q, attention.k, attention.v, attention.o")


def test_a_rank_that_is_the_matrix_own() -> None:
    with pytest.raises(UserError, match=r"rank 16: attention\.k is of rank 16 itself; use 1\.\.15"):
        make_plan(recipe(ROUTED | {"family": "llama"}, rank=16))


@pytest.mark.parametrize("key", ["ranks", "alhpa"])
def test_an_unknown_key(key: str) -> None:
    with pytest.raises(UserError, match="did you mean"):
        recipe(**{key: 3})


@pytest.mark.parametrize(
    ("model", "changes"),
    [
        (EXPERTS, {"parallel.ep": 2, "parallel.dp": 2, "train.micro_batch": 2}),
    ],
)
def test_divided_layers(model: dict | None, changes: dict) -> None:
    with pytest.raises(UserError, match="do not go together: adapters are put on whole layers"):
        make_plan(replace(recipe(model, rank=2), changes))


@pytest.mark.parametrize("train", [(), ("norms",)])
def test_a_plan_counts_what_learns(train: tuple[str, ...]) -> None:
    """Rank 8 on seven matrices a layer, by hand; moments are twice the gradients, with a counter a tensor."""
    given = recipe(train=train)
    model, plan = given.model, make_plan(given)
    hidden, ffn, heads = model.hidden, model.ffn, model.heads * model.head_dim
    kv = model.kv_heads * model.head_dim
    sides = [(hidden, heads), (hidden, kv), (hidden, kv), (heads, hidden), (hidden, ffn), (hidden, ffn), (ffn, hidden)]
    learned = model.layers * sum(8 * (a + b) for a, b in sides)
    tensors = 2 * len(sides) * model.layers
    if train:
        learned, tensors = learned + (2 * model.layers + 1) * hidden, tensors + 2 * model.layers + 1
    assert plan.predicted["memory.gradients"] == 4 * learned
    assert plan.predicted["memory.optimizer"] == 8 * learned + 4 * tensors
    assert plan.predicted["memory.parameters"] == 4 * (model.parameters + model.layers * sum(8 * sum(s) for s in sides))


def test_the_seed_of_the_run_is_the_adapters() -> None:
    given = replace(recipe(), {"train.seed": 5})
    (technique, *_) = apply.passes(given)
    assert technique.name == "lora"
    assert technique.settings(given).seed == 5
    assert technique.settings(replace(given, {"techniques": {"lora": {"seed": 3}}})).seed == 3
    assert given.techniques["lora"].seed is None
    apply.predict(given, describe(given.model, shapes_of(given)))
