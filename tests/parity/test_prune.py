"""A pruned model computes what the whole one does with the removed parts giving zero; transformers reads its folder."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
from families import theirs_of
from llama_pair import batch, real_prompts, their_logits

from burnish.compress import prune_model
from burnish.compress.prune_model import sliced
from burnish.config import ModelConfig
from burnish.export.safetensors import save_folder
from burnish.load.model import load_folder
from burnish.models.cache import KVCache
from burnish.models.decoder import Decoder
from burnish.pruned_sizes import sizes_of_config
from burnish.serve.generate import generate
from burnish.serve.sampling import Sampling
from pruned_models import KINDS, NAMES, pruned

CLOSE = 1e-4  # as of whole models against transformers
names = pytest.mark.parametrize("name", NAMES)


@torch.no_grad()
def silenced(model: Decoder, table) -> Decoder:
    """The whole model, of which what the table removes adds nothing: columns that read it are zero."""
    model = copy.deepcopy(model)
    sizes = sizes_of_config(model.shape)
    for row, block in zip(table.layers, model.layers, strict=True):
        if not row.stays:
            for part in (block.attention.o, block.mlp.down):
                for parameter in part.parameters():
                    parameter.zero_()
            continue
        for group in set(range(sizes.groups)) - set(row.groups):
            wide = sizes.queries * model.shape.head_dim
            block.attention.o.weight[:, group * wide : (group + 1) * wide] = 0
        for channel in set(range(sizes.channels)) - set(row.channels):
            block.mlp.down.weight[:, channel] = 0
    return model


def logits(model: Decoder, side: str) -> torch.Tensor:
    """Those of the real tokens of three rows of unequal length."""
    ids, mask = batch(model.shape, side)
    return model.logits(model(ids, mask_BS=mask))[mask]


@torch.no_grad()
def difference(name: str, kind: str) -> float:
    """The largest difference between the smaller model and the silenced one, of the largest logit, in float64."""
    model, small, table = pruned(name, kind, torch.float64)
    worst = 0.0
    for side in ("left", "right"):
        wanted = logits(silenced(model, table), side)
        worst = max(worst, float((logits(small, side) - wanted).abs().max() / wanted.abs().max()))
    return worst


@names
@pytest.mark.parametrize("kind", KINDS)
def test_logits_are_those_of_the_model_with_the_removed_parts_silent(name, kind):
    assert difference(name, kind) < 1e-12


@names
@torch.no_grad()
def test_transformers_reads_the_folder_with_equal_logits(name, tmp_path):
    _, small, _ = pruned(name, "first-order")
    save_folder(small, small.shape, tmp_path / "m")
    theirs = theirs_of(tmp_path / "m")
    for side in ("left", "right"):
        ids, mask = batch(small.shape, side)
        wanted = their_logits(theirs, ids, mask)
        assert wanted.abs().max() > 1
        torch.testing.assert_close(small.logits(small(ids, mask_BS=mask))[mask], wanted[mask], rtol=0, atol=CLOSE)


@names
@torch.no_grad()
def test_the_folder_opens_again_as_the_same_model(name, tmp_path):
    _, small, _ = pruned(name)
    save_folder(small, small.shape, tmp_path / "m")
    back, config = load_folder(tmp_path / "m")
    assert config == small.shape
    assert {k: v.tolist() for k, v in back.state_dict().items()} == {
        k: v.tolist() for k, v in small.state_dict().items()
    }
    assert (back.head.weight is back.embed.weight) == config.tied


@pytest.mark.parametrize("name", ["llama 3", "mistral", "qwen2 window", "qwen3", "mixtral"])
@torch.no_grad()
def test_greedy_tokens_with_a_cache_are_those_without(name):
    _, small, _ = pruned(name)
    ids, mask = batch(small.shape, "left")
    prompts = real_prompts(ids, mask)
    written = generate(small, prompts, Sampling(max_new_tokens=12))
    for prompt, found in zip(prompts, written, strict=True):
        for length in range(len(found)):
            whole = torch.tensor([prompt + found[:length]])
            assert int(small.logits(small(whole))[0, -1].argmax()) == found[length]


def test_the_whole_model_stays_as_it_is():
    model, small, _ = pruned("llama 2", "first-order")
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with torch.no_grad():
        for parameter in small.parameters():
            parameter.zero_()
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(parameter.requires_grad for parameter in itertools.chain(model.parameters(), small.parameters()))
    assert model.shape.heads == 6


def test_layers_behind_a_removed_one_keep_their_windows():
    """Layer 0 sees all, 1 and 2 a window: without 0 both that stay have one."""
    model, _, table = pruned("qwen3 window")
    rows = [row.model_copy(update={"stays": row.layer > 0}) for row in table.layers]
    filled = next(row for row in table.layers if row.stays)
    rows = [row.model_copy(update={"groups": filled.groups, "channels": filled.channels}) for row in rows]
    table = table.model_copy(update={"layers": tuple(rows)})
    small = prune_model.cut(model, table)
    assert (small.shape.window_from, small.shape.layers) == (0, 2)
    with torch.no_grad():
        torch.testing.assert_close(logits(small, "left"), logits(silenced(model, table), "left"), rtol=0, atol=1e-4)


def test_flt_088_the_number_of_heads_follows_the_weights():
    """A model whose heads were removed runs, with and without a cache, and says how many it has."""
    model, small, table = pruned("llama 2")
    stays = len(table.kept[0].groups)
    assert (model.shape.heads, small.shape.heads, small.shape.kv_heads, stays) == (6, 4, 4, 4)
    ids, _ = batch(small.shape)
    with torch.no_grad():
        cache = KVCache(small.shape, len(ids), ids.shape[1])
        torch.testing.assert_close(small(ids, cache=cache), small(ids), rtol=0, atol=1e-5)
    assert cache.layers[0].keys.shape[2] == small.layers[0].attention.k.out_features // small.shape.head_dim == 4


def test_flt_092_weights_of_a_pruned_model_fit_the_model_its_config_makes(tmp_path):
    _, small, _ = pruned("qwen2")
    save_folder(small, small.shape, tmp_path / "m")
    built = Decoder(ModelConfig.from_file(tmp_path / "m" / "config.json"))
    assert {k: v.shape for k, v in built.state_dict().items()} == {k: v.shape for k, v in small.state_dict().items()}
    built.load_state_dict(small.state_dict(), strict=True)


@pytest.mark.sabotage
@pytest.mark.parametrize("name", ["llama 3", "mistral whole", "qwen2"])
def test_other_query_heads_than_those_of_a_removed_group_are_noticed(name, monkeypatch):
    def wrong(tensor, inside, row, before):
        if inside.startswith("attention.q."):
            row = row.model_copy(update={"groups": tuple(before.groups - 1 - g for g in reversed(row.groups))})
        return sliced(tensor, inside, row, before)

    assert difference(name, "norm") < 1e-12
    monkeypatch.setattr(prune_model, "sliced", wrong)
    assert difference(name, "norm") > 1e-3


@pytest.mark.sabotage
@pytest.mark.parametrize("name", ["llama 2", "gpt2"])
def test_other_channels_of_up_than_of_down_are_noticed(name, monkeypatch):
    def wrong(tensor, inside, row, before):
        if inside.startswith("mlp.up."):
            row = row.model_copy(update={"channels": tuple((c + 1) % before.channels for c in row.channels)})
        return sliced(tensor, inside, row, before)

    assert difference(name, "norm") < 1e-12
    monkeypatch.setattr(prune_model, "sliced", wrong)
    assert difference(name, "norm") > 1e-3
