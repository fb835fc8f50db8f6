"""Tensor parts: which part of a model a weight belongs to, told by the names that checkpoints of all families use."""

from __future__ import annotations

import re

# Tensors that follow from the settings and are no weights: rotary frequencies, masks, position numbers.
DERIVED = re.compile(r"(?:inv_freq|position_ids|masked_bias|(?:^|\.)(?:attn|attention)\.bias)$")

# Part -> what its names hold; the first that matches counts.
PARTS = {
    "norms": re.compile(r"(?i)norm|(?:^|\.)ln(?:_\w+|\d)?\."),
    "router": re.compile(r"(?i)router|(?:mlp|moe)\.gate\."),
    "experts": re.compile(r"(?i)experts?[._]"),
    "attention": re.compile(r"(?i)attn|attention|[._]qkv"),
    "head": re.compile(r"(?i)^(?:lm_head|embed_out|score|classifier|cls|qa_outputs)\.|pooler"),
    "embedding": re.compile(r"(?i)embed|\bw[tp]e\b"),
    "feed_forward": re.compile(r"(?i)mlp|ffn|feed_?forward|intermediate|output\.dense|\bfc\d"),
}
OTHER = "other"
ORDER = ("embedding", "attention", "feed_forward", "router", "experts", "norms", "head", OTHER)  # as they are shown

# A size -> its keys in config.json, for families that are only looked into.
SIZE_KEYS = {
    "layers": ("num_hidden_layers", "n_layer", "num_layers", "n_layers"),
    "hidden": ("hidden_size", "n_embd", "d_model", "dim"),
    "ffn": ("moe_intermediate_size", "intermediate_size", "n_inner", "d_ff", "ffn_dim"),
    "heads": ("num_attention_heads", "n_head", "num_heads", "n_heads"),
    "kv_heads": ("num_key_value_heads", "num_attention_heads", "n_head"),
    "head_dim": ("head_dim",),
    "vocab": ("vocab_size",),
    "experts": ("num_local_experts", "num_experts", "n_routed_experts"),
    "topk": ("num_experts_per_tok",),
}
CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "max_seq_len", "n_ctx")
# What names of architectures that write text on hold; these keep keys and values.
CAUSAL = re.compile(r"CausalLM|LMHead")


def part_of(name: str) -> str:
    """The part that a weight of this name belongs to."""
    return next((part for part, pattern in PARTS.items() if pattern.search(name)), OTHER)
