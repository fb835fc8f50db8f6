"""A tiny random network of every family twice, ours and transformers', the second read from files that we wrote."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from burnish.config import ModelConfig
from burnish.export.safetensors import save_folder
from burnish.models.decoder import Decoder

SIZES = {"vocab": 101, "hidden": 48, "ffn": 80, "layers": 3, "heads": 6, "max_positions": 96, "init_std": 0.2}
ROUTED = {"ffn": 40, "experts": 5, "topk": 2}
LLAMA3 = {
    "kind": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_positions": 24,
}
FAMILIES = {
    "llama 2": {"kv_heads": 6, "tied": False},
    "llama 3": {"kv_heads": 2, "rope_theta": 500.0, "rope_scaling": LLAMA3, "tied": False},
    "llama linear": {"kv_heads": 2, "rope_scaling": {"kind": "linear", "factor": 4.0}},
    "llama yarn": {
        "kv_heads": 1,
        "head_dim": 16,
        "rope_theta": 500.0,
        "rope_scaling": {"kind": "yarn", "factor": 4.0, "original_max_positions": 48},
    },
    "mistral": {"family": "mistral", "kv_heads": 2, "window": 5, "tied": False},
    "mistral whole": {"family": "mistral", "kv_heads": 3, "window": 0},
    "qwen2": {"family": "qwen2", "kv_heads": 2},
    "qwen2 window": {"family": "qwen2", "kv_heads": 1, "window": 4, "window_from": 2, "tied": False},
    "qwen3": {"family": "qwen3", "kv_heads": 2, "head_dim": 16, "norm_eps": 1e-6},
    "qwen3 window": {"family": "qwen3", "kv_heads": 3, "head_dim": 10, "window": 6, "window_from": 1},
    "gpt2": {"family": "gpt2"},
    "gpt2 untied": {"family": "gpt2", "tied": False, "vocab": 97},
    "mixtral": {"family": "mixtral", "kv_heads": 2, "tied": False, **ROUTED},
    "mixtral window": {"family": "mixtral", "kv_heads": 3, "window": 7, **ROUTED, "topk": 1},
    "qwen3 moe": {"family": "qwen3_moe", "kv_heads": 2, "head_dim": 16, **ROUTED, "topk": 3, "norm_topk": False},
    "qwen3 moe shares": {"family": "qwen3_moe", "kv_heads": 1, "head_dim": 8, **ROUTED, "topk": 5, "norm_topk": True},
}


def config_of(name: str) -> ModelConfig:
    return ModelConfig(**SIZES | FAMILIES[name])


def random_decoder(config: ModelConfig, seed: int = 0) -> Decoder:
    """Norm weights differ from 1 and biases from 0, so that leaving one out shows."""
    model = Decoder(config, torch.Generator().manual_seed(seed))
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn(parameter.shape, generator=draw), alpha=0.1)
    return model


@cache
def pair(name: str) -> tuple[Decoder, PreTrainedModel]:
    """Both networks with the same weights; not to be changed."""
    config = config_of(name)
    ours = random_decoder(config)
    with TemporaryDirectory() as folder:
        save_folder(ours, config, Path(folder) / "m")
        return ours, theirs_of(Path(folder) / "m")


def theirs_of(folder: Path) -> PreTrainedModel:
    """What transformers makes of a folder; nothing may be missing or left over."""
    theirs, info = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True, attn_implementation="eager")
    assert not any(info.values()), info
    return theirs.eval()
