"""What cannot be pruned is refused in one line that says which values work."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from pydantic import ValidationError

from burnish.compress.samples import Samples
from burnish.config import ModelConfig
from burnish.describe import Shapes, describe
from burnish.errors import BudgetNotMet, UserError
from burnish.mesh import Mesh
from burnish.models.decoder import Decoder
from burnish.ops.lora import put_on
from burnish.techniques import prune
from burnish.work import Op

SIZES = {"vocab": 41, "hidden": 48, "ffn": 40, "layers": 3, "heads": 6, "kv_heads": 3}
GPT2 = {"family": "gpt2", "kv_heads": 6}
ROUTED = {"family": "mixtral", "experts": 4, "topk": 2}


def checked(config: ModelConfig, mesh: Mesh = Mesh(), **asked: object) -> None:  # noqa: B008 - frozen
    prune.check(prune.Config(**asked), describe(config, Shapes(1, 4)), mesh)


@pytest.mark.parametrize(
    ("sizes", "asked", "said"),
    [
        ({}, {"groups": 0.3}, "groups 0.3 of 3 takes none out; shares that do: 0.334, 0.667"),
        ({"kv_heads": 1}, {"groups": 0.5}, "groups 0.5 of 1 takes none out; set groups=0"),
        ({"heads": 8, "kv_heads": 8}, {"groups": 0.2}, "shares that do: 0.25, 0.5, 0.625"),
        ({}, {"channels": 0.1}, "channels 0.1 of 40 takes none out; shares that do: 0.2, 0.4, 0.6"),
        ({}, {"channels": 0, "layers": 0.3}, "layers 0.3 of 3 takes none out; shares that do: 0.334, 0.667"),
        (ROUTED, {}, "experts stay whole; set channels=0"),
        (GPT2, {"groups": 0.5}, "all heads stay; set groups=0"),
    ],
)
def test_shares_that_take_nothing_name_those_that_do(sizes, asked, said):
    with pytest.raises(UserError) as caught:
        checked(ModelConfig(**SIZES | sizes), **asked)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("share", [0.334, 0.667])
def test_the_named_shares_do(share):
    checked(ModelConfig(**SIZES), groups=share)
    checked(ModelConfig(**SIZES), layers=share)


def test_kept_heads_divide_the_hidden_size_unless_told():
    """Of 8 groups 6 stay, whose heads divide 48; 7 do not."""
    config = ModelConfig(**SIZES | {"heads": 8, "kv_heads": 8})
    work = describe(config, Shapes(1, 4))
    assert prune.decide(prune.Config(groups=0.15), work).groups == 8
    assert prune.decide(prune.Config(groups=0.15, even_heads=False), work).groups == 7
    assert prune.decide(prune.Config(groups=0.45), work).groups == 6


def test_a_target_out_of_reach_names_the_least():
    with pytest.raises(BudgetNotMet, match=r"parameters 0.01: .* is out of reach .*; the least there is: [\d,]+"):
        checked(ModelConfig(**SIZES), parameters=0.01)


def test_models_of_several_ranks_and_other_networks_are_refused():
    with pytest.raises(UserError, match="on one rank, not on 2"):
        checked(ModelConfig(**SIZES), Mesh(dp=2))
    plain = describe(ModelConfig(**SIZES), Shapes(1, 4))
    other = replace(plain, blocks=tuple(replace(b, ops=(*b.ops, Op("scan"))) for b in plain.blocks))
    with pytest.raises(UserError, match="'scan' is no part that is cut here"):
        prune.check(prune.Config(), other, Mesh())
    with pytest.raises(UserError, match="a Linear is not pruned here; a decoder or encoder is"):
        prune.search(prune.Config(), torch.nn.Linear(3, 3), None)


def test_a_model_that_is_not_plain_is_refused():
    model = Decoder(ModelConfig(**SIZES))
    put_on(model, ["layers.0.mlp.up"], 2, 1.0, torch.Generator().manual_seed(0))
    with pytest.raises(UserError, match=r"layers\.0\.mlp\.up.* is no tensor of a plain model; prune first"):
        prune.search(prune.Config(importance="norm"), model, None)


def test_samples_are_asked_for_where_they_are_read():
    model = Decoder(ModelConfig(**SIZES))
    for kind in ("activation", "first-order"):
        with pytest.raises(UserError, match=f"importance {kind} reads samples"):
            prune.apply(prune.Config(importance=kind), model, Mesh())
    with pytest.raises(UserError, match="no sample has two tokens"):
        prune.search(prune.Config(importance="first-order"), model, Samples.of([[1], [2]]))


def test_weights_that_are_not_finite_are_refused():
    model = Decoder(ModelConfig(**SIZES))
    with torch.no_grad():
        model.layers[1].mlp.up.weight[3, 3] = float("nan")
    with pytest.raises(UserError, match="is not finite"):
        prune.search(prune.Config(importance="norm"), model, None)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"channels": 0}, "nothing would go"),
        ({"parameters": 0.5, "flops": 0.5}, "parameters and flops are both targets"),
        ({"bytes": "3 parsecs"}, "a size is a number of bytes"),
        ({"channels": 1.0}, "less than 1"),
        ({"multiple": 0}, "greater than or equal to 1"),
    ],
)
def test_settings_that_contradict_themselves_are_refused(asked, said):
    with pytest.raises(ValidationError, match=said):
        prune.Config(**asked)


def test_a_trainable_is_sent_to_its_folder():
    from types import SimpleNamespace

    with pytest.raises(UserError, match=r"train\.init"):
        prune.apply(prune.Config(), SimpleNamespace(parts=[]), Mesh())
