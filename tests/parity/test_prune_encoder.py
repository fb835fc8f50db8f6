"""Pruned encoders: silent channels and skipped layers compute the same, transformers reads them, the law holds."""

from __future__ import annotations

import copy

import pytest
import torch
import transformers
from encoder_pair import SHAPES, batch
from torch import nn

from burnish.compress.prune_table import Table
from burnish.compress.samples import Samples
from burnish.describe import Shapes
from burnish.encoders.config import EncoderConfig
from burnish.encoders.describe import describe_encoder
from burnish.errors import UserError
from burnish.export.encoder import save_encoder
from burnish.load.encoder import load_encoder
from burnish.load.folder import open_folder
from burnish.mesh import Mesh
from burnish.models.encoder import Encoder
from burnish.pruned_sizes import parameters_of, pruned_config
from burnish.tables.encoders import ENCODERS
from burnish.techniques import prune

names = pytest.mark.parametrize("name", SHAPES)
ASKED = {"channels": 0.4, "layers": 0.5, "multiple": 3}


def encoder(config: EncoderConfig) -> Encoder:
    model = Encoder(config, torch.Generator().manual_seed(0)).eval()
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn(parameter.shape, generator=draw), alpha=0.3)
    return model


def samples(config: EncoderConfig) -> Samples:
    ids, mask, _ = batch(config)
    return Samples(ids, mask)


def pruned(name: str, kind: str, double: bool = False) -> tuple[Encoder, Encoder, Table]:
    config = SHAPES[name]
    model = encoder(config).double() if double else encoder(config)
    asked = prune.Config(**ASKED, importance=kind)
    table = prune.search(asked, model, samples(config))
    return model, prune.apply(asked, model, Mesh(), table), table


@torch.no_grad()
def silenced(model: Encoder, table: Table) -> Encoder:
    model = copy.deepcopy(model)
    for row in table.kept:
        for channel in set(range(model.shape.ffn)) - set(row.channels):
            model.layers[row.layer].mlp.down.weight[:, channel] = 0
    model.layers = nn.ModuleList(model.layers[number] for number in table.numbers)
    return model


@names
@pytest.mark.parametrize("kind", ["norm", "activation"])
@torch.no_grad()
def test_hidden_states_are_those_with_silent_channels_and_skipped_layers(name, kind):
    model, small, table = pruned(name, kind, double=True)
    assert small.shape.layers < model.shape.layers
    assert small.shape.ffn < model.shape.ffn
    for side in ("left", "right"):
        ids, mask, types = batch(model.shape, side)
        found, wanted = (m(ids, mask_BS=mask, types_BS=types)[mask] for m in (small, silenced(model, table)))
        assert float((found - wanted).abs().max() / wanted.abs().max()) < 1e-12


@names
@torch.no_grad()
def test_transformers_reads_the_folder_with_equal_states(name, tmp_path):
    _, small, _ = pruned(name, "activation")
    config = small.shape
    save_encoder(small, config, tmp_path / "m")
    back, read = load_encoder(open_folder(tmp_path / "m"))
    assert read == config
    kind = getattr(transformers, ENCODERS[config.family].heads[config.head].architecture)
    extra = {} if config.head != "none" else {"add_pooling_layer": config.pooler}
    theirs = kind.from_pretrained(tmp_path / "m", attn_implementation="eager", **extra).eval()
    body = theirs if config.head == "none" else getattr(theirs, theirs.base_model_prefix)
    ids, mask, types = batch(config)
    wanted = body(ids, attention_mask=mask.long(), token_type_ids=types).last_hidden_state
    for model in (small, back):
        assert float((model(ids, mask_BS=mask, types_BS=types) - wanted)[mask].abs().max()) < 1e-4


@names
@pytest.mark.parametrize("target", [{}, {"parameters": 0.8}, {"flops": 0.7}])
def test_the_description_of_the_smaller_config_is_the_rewritten_one(name, target):
    config, asked = SHAPES[name], prune.Config(**ASKED, **target)
    for shapes in (Shapes(rows=3, seq=17, micro=2, rest=1), Shapes(rows=2, seq=19, packed=True, pieces=5, pairs=99)):
        plain = describe_encoder(config, shapes)
        sizes = prune.decide(asked, plain)
        small = pruned_config(config, sizes)
        assert prune.predict(asked, plain, Mesh()) == describe_encoder(small, shapes)
        assert sizes == prune.decide(asked, describe_encoder(config, Shapes(1, 1)))
        assert parameters_of(describe_encoder(small, shapes)) == small.parameters


def test_heads_and_first_order_are_refused():
    model = encoder(SHAPES["bare"])
    with pytest.raises(UserError, match="no size of a head: all heads stay; set groups=0"):
        prune.search(prune.Config(groups=0.5), model, samples(model.shape))
    with pytest.raises(UserError, match="predicts no next token; use activation or norm"):
        prune.search(prune.Config(importance="first-order"), model, samples(model.shape))
