"""Model folders of every family to transformers and back, bit for bit."""

from __future__ import annotations

import json

import pytest
import torch
from families import FAMILIES, config_of, pair, random_decoder, theirs_of
from transformers import AutoConfig

from burnish.architecture import architecture
from burnish.architecture_files import decoder as planned
from burnish.config import ModelConfig
from burnish.errors import UserError
from burnish.export.safetensors import save_folder
from burnish.load.model import load_folder
from burnish.parameters import parameters
from burnish.tensors import tensor_shapes

families = pytest.mark.parametrize("name", FAMILIES)


def same(one: torch.nn.Module, two: torch.nn.Module) -> bool:
    state, other = one.state_dict(), two.state_dict()
    return state.keys() == other.keys() and all(torch.equal(state[key], other[key]) for key in state)


@families
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_ours_read_by_theirs_written_by_theirs_read_by_ours(name, dtype, tmp_path):
    config = config_of(name)
    ours = random_decoder(config)
    save_folder(ours, config, tmp_path / "ours", dtype=dtype, shard_bytes=30_000)
    theirs = theirs_of(tmp_path / "ours")
    assert theirs.dtype == getattr(torch, dtype)
    theirs.save_pretrained(tmp_path / "theirs")
    back, read = load_folder(tmp_path / "theirs")
    assert read == config
    assert same(back, ours.to(theirs.dtype))
    assert (back.head.weight is back.embed.weight) == config.tied


@families
def test_a_config_goes_through_transformers_unchanged(name):
    """Their class reads ours and writes its own spelling of it, which we read as what it was."""
    config = config_of(name)
    values = config.to_hf()
    theirs = AutoConfig.for_model(**values)
    assert ModelConfig.from_hf(json.loads(theirs.to_json_string(use_diff=False))) == config
    assert ModelConfig.from_hf(json.loads(theirs.to_json_string(use_diff=True))) == config


@families
def test_counts_of_parameters_agree(name):
    """The network's own, the shapes', two closed forms, and what the planner reads from the same file."""
    config = config_of(name)
    count = sum(p.numel() for p in random_decoder(config).parameters())
    assert count == config.parameters == parameters(architecture(config))
    assert count == parameters(planned(config.to_hf(), "config.json"))
    shapes = {key: tuple(value.shape) for key, value in random_decoder(config).state_dict().items()}
    assert shapes == tensor_shapes(config)


@families
def test_a_body_without_its_head_wrapper_is_read(name, tmp_path):
    config = config_of(name)
    if not config.tied:
        pytest.skip("a bare body has no head")
    ours, theirs = pair(name)
    theirs.base_model.save_pretrained(tmp_path)
    back, _ = load_folder(tmp_path)
    assert same(back, ours)


def test_the_tensors_that_gpt2_derives_are_left_alone(tmp_path):
    from safetensors.torch import load_file, save_file

    config = config_of("gpt2")
    save_folder(random_decoder(config), config, tmp_path / "m")
    state = load_file(tmp_path / "m" / "model.safetensors")
    bare = {key.removeprefix("transformer."): value for key, value in state.items()}
    mask = torch.ones(1, 1, 96, 96).tril()
    save_file(
        bare | {"h.0.attn.bias": mask, "h.0.attn.masked_bias": torch.tensor(-1e4)}, tmp_path / "m/model.safetensors"
    )
    assert same(load_folder(tmp_path / "m")[0], random_decoder(config))


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("llama 3", {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "rope_scaling of kind 'dynamic'"),
        ("llama 3", {"rope_scaling": {"rope_type": "llama3", "factor": 2.0}}, "rope_scaling.original_max_position"),
        ("llama 3", {"rope_scaling": [2.0]}, "rope_scaling is"),
        ("llama 3", {"rope_scaling": {"type": "linear", "factor": "two"}}, "rope_scaling.factor"),
        ("llama 2", {"attention_bias": True}, "attention_bias is True"),
        ("qwen2", {"layer_types": ["sliding_attention"] * 3, "use_sliding_window": True}, "layer_types"),
        ("gpt2", {"activation_function": "relu"}, "activation_function is 'relu'"),
        ("gpt2", {"n_head": 5}, "hidden 48 is not divisible by heads 5"),
        ("mixtral", {"num_experts_per_tok": 9}, "topk 9 of experts 5"),
        ("qwen3 moe", {"mlp_only_layers": [1]}, "mlp_only_layers is [1]"),
        ("qwen3 moe", {"decoder_sparse_step": 2}, "decoder_sparse_step is 2"),
    ],
)
def test_a_setting_that_no_decoder_here_has_is_refused_by_its_key(name, change, said):
    with pytest.raises(UserError) as refused:
        ModelConfig.from_hf(config_of(name).to_hf() | change, "a/config.json")
    assert said in str(refused.value)
    assert "a/config.json" in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"window": 4}, "window 4: a llama decoder has no such setting"),
        ({"experts": 4, "topk": 1}, "experts 4"),
        ({"family": "gpt2", "kv_heads": 2}, "kv_heads 2"),
        ({"family": "gpt2", "rope_scaling": {"kind": "linear", "factor": 2.0}}, "rope_scaling"),
        ({"family": "qwen2", "window": 4, "window_from": 9}, "window_from 9"),
    ],
)
def test_a_config_that_no_file_of_its_family_could_say_is_refused(change, said):
    with pytest.raises(ValueError, match=said):
        ModelConfig(**config_of("llama 2").model_dump() | change)
