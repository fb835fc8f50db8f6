"""Model families: how each one's `config.json` keys and checkpoint names map onto ours.

A family is one `Family` row; no other file asks which family a model is of.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Family:
    """One family of decoders as its Hugging Face checkpoints spell it."""

    model_type: str
    architecture: str
    keys: dict[str, str]  # our ModelConfig field -> key in config.json
    defaults: dict[str, Any]  # config.json values that upstream assumes when a file leaves the key out
    fixed: dict[str, Any]  # config.json values this implementation requires; any other value is refused
    names: dict[str, str] = field(default_factory=dict)  # our parameter name -> checkpoint name; "{i}" is the layer


LLAMA_KEYS = {
    "vocab": "vocab_size",
    "hidden": "hidden_size",
    "ffn": "intermediate_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "max_positions": "max_position_embeddings",
    "norm_eps": "rms_norm_eps",
    "rope_theta": "rope_theta",
    "tied": "tie_word_embeddings",
    "bos": "bos_token_id",
    "eos": "eos_token_id",
    "pad": "pad_token_id",
    "init_std": "initializer_range",
}

LLAMA_NAMES = {
    "embed.weight": "model.embed_tokens.weight",
    "layers.{i}.attention_norm.weight": "model.layers.{i}.input_layernorm.weight",
    "layers.{i}.attention.q.weight": "model.layers.{i}.self_attn.q_proj.weight",
    "layers.{i}.attention.k.weight": "model.layers.{i}.self_attn.k_proj.weight",
    "layers.{i}.attention.v.weight": "model.layers.{i}.self_attn.v_proj.weight",
    "layers.{i}.attention.o.weight": "model.layers.{i}.self_attn.o_proj.weight",
    "layers.{i}.mlp_norm.weight": "model.layers.{i}.post_attention_layernorm.weight",
    "layers.{i}.mlp.gate.weight": "model.layers.{i}.mlp.gate_proj.weight",
    "layers.{i}.mlp.up.weight": "model.layers.{i}.mlp.up_proj.weight",
    "layers.{i}.mlp.down.weight": "model.layers.{i}.mlp.down_proj.weight",
    "norm.weight": "model.norm.weight",
    "head.weight": "lm_head.weight",
}

FAMILIES = {
    "llama": Family(
        model_type="llama",
        architecture="LlamaForCausalLM",
        keys=LLAMA_KEYS,
        defaults={
            "max_position_embeddings": 2048,
            "rms_norm_eps": 1e-6,
            "rope_theta": 10000.0,
            "tie_word_embeddings": False,
            "initializer_range": 0.02,
        },
        fixed={"hidden_act": "silu", "attention_bias": False, "mlp_bias": False, "rope_scaling": None},
        names=LLAMA_NAMES,
    ),
}
