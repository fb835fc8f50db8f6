"""Small random decoders of every family whose sizes groups divide, and samples of unequal rows for them."""

from __future__ import annotations

import torch
from torch import Tensor

from burnish.compress.samples import Samples
from burnish.config import ModelConfig
from burnish.models.decoder import Decoder

SIZES = {"vocab": 67, "hidden": 64, "ffn": 96, "layers": 2, "heads": 4, "max_positions": 48, "init_std": 0.08}
FAMILIES = {
    "llama": {"kv_heads": 2},
    "one value head": {"kv_heads": 1, "tied": False, "vocab": 59},
    "mistral": {"family": "mistral", "kv_heads": 4, "window": 5},
    "qwen2": {"family": "qwen2", "kv_heads": 2, "tied": False},
    "qwen3": {"family": "qwen3", "kv_heads": 2, "head_dim": 8},
    "gpt2": {"family": "gpt2", "ffn": 128},
    "mixtral": {"family": "mixtral", "kv_heads": 2, "experts": 3, "topk": 2, "tied": False},
    "qwen3 moe": {"family": "qwen3_moe", "kv_heads": 1, "head_dim": 32, "experts": 5, "topk": 2, "norm_topk": False},
}
IN_FILES = tuple(name for name in FAMILIES if name != "gpt2")
LENGTHS = (9, 17, 5, 1, 12)


def config_of(name: str) -> ModelConfig:
    return ModelConfig(**SIZES | FAMILIES[name])


def decoder(name: str, seed: int = 0) -> Decoder:
    """Norm weights differ from 1 and biases from 0; a few channels are loud, as real ones are."""
    model = Decoder(config_of(name), torch.Generator().manual_seed(seed))
    draw = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn(parameter.shape, generator=draw), alpha=0.3)
        for block in model.layers:
            for norm in (block.attention_norm, block.mlp_norm):
                norm.weight[::11] *= 8
    return model.eval()


def samples(name: str, lengths: tuple[int, ...] = LENGTHS, seed: int = 3) -> Samples:
    draw = torch.Generator().manual_seed(seed)
    return Samples.of([torch.randint(config_of(name).vocab, (n,), generator=draw).tolist() for n in lengths])


@torch.no_grad()
def logits(model: Decoder, own: Samples) -> Tensor:
    """Scores of the real tokens [T, V]."""
    return model.logits(model(own.ids, mask_BS=own.mask))[own.mask]


def divergence(model: Decoder, base: Tensor, own: Samples) -> float:
    """Mean Kullback-Leibler divergence from `base` to the model, nats a token."""
    found = logits(model, own).double().log_softmax(-1)
    wanted = base.double().log_softmax(-1)
    return float((wanted.exp() * (wanted - found)).sum(-1).mean())
