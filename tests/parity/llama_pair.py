"""The same small random network twice: ours and transformers', and batches whose rows differ in length."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from burnish.config import ModelConfig
from burnish.export.safetensors import named_for_file
from burnish.models.decoder import Decoder

BASE = ModelConfig(vocab=101, hidden=48, ffn=80, layers=3, heads=6, kv_heads=2, max_positions=96, init_std=0.2)
SHAPES = {
    "grouped-tied": BASE,
    "grouped-untied": BASE.model_copy(update={"tied": False}),
    "full-heads-untied": ModelConfig(**BASE.model_dump() | {"kv_heads": 6, "tied": False, "vocab": 97}),
    "one-kv-head-tied": ModelConfig(**BASE.model_dump() | {"kv_heads": 1, "rope_theta": 500.0, "norm_eps": 1e-6}),
    "wide-heads-tied": ModelConfig(**BASE.model_dump() | {"head_dim": 16, "vocab": 131}),  # heads * head_dim != hidden
}
LENGTHS = (17, 5, 12)  # real tokens of each row


def pair(config: ModelConfig, seed: int = 0) -> tuple[Decoder, LlamaForCausalLM]:
    """Both networks with the same weights; norm weights differ from 1, so that leaving one out shows."""
    ours = Decoder(config, torch.Generator().manual_seed(seed))
    with torch.no_grad():
        for parameter in ours.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed)), alpha=0.1)
    theirs = LlamaForCausalLM(LlamaConfig(**config.to_hf())).eval()
    state = named_for_file(ours, config)
    theirs.load_state_dict(state | {"lm_head.weight": ours.head.weight.detach()})
    return ours, theirs


def batch(config: ModelConfig, side: str = "right", seed: int = 1) -> tuple[Tensor, Tensor]:
    """ids [3, 17] and mask [3, 17] (True = real), rows of LENGTHS padded on `side`."""
    ids = torch.randint(config.vocab, (len(LENGTHS), max(LENGTHS)), generator=torch.Generator().manual_seed(seed))
    column = torch.arange(max(LENGTHS))
    lengths = torch.tensor(LENGTHS)[:, None]
    mask = column < lengths if side == "right" else column >= max(LENGTHS) - lengths
    return ids, mask


def real_prompts(ids: Tensor, mask: Tensor) -> list[list[int]]:
    return [row[keep].tolist() for row, keep in zip(ids, mask, strict=True)]


def their_logits(theirs: LlamaForCausalLM, ids: Tensor, mask: Tensor | None = None) -> Tensor:
    if mask is None:
        return theirs(ids).logits
    positions = (mask.long().cumsum(1) - 1).clamp(min=0)
    return theirs(ids, attention_mask=mask.long(), position_ids=positions).logits
