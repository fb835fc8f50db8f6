"""GGUF families as data: how each architecture spells its settings and tensors, beside Hugging Face's spelling.

Sources: llama.cpp's converter and loaders, and the Hugging Face configuration classes of each family.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Setting:
    """A key of the metadata (after the architecture's prefix) and of config.json. `type` is u32 or f32.

    `size` is what sizes of tensors call it. A setting that is not `required` may be missing from the metadata. `also`:
    another key that newer checkpoints have for the same.
    """

    key: str
    config: str
    type: str = "u32"
    size: str = ""
    required: bool = True
    also: str = ""


@dataclass(frozen=True)
class Matrix:
    """A tensor in both spellings, "{i}" the layer and "{e}" the expert. `shape`: sizes, as Hugging Face has it.

    `order`: "q" or "k" for rows that llama.cpp turns, "transposed" for GPT-2's layers. `only_if`: the flag that it
    hangs on. `whole`: written in float32 whatever the format.
    """

    gguf: str
    name: str
    shape: tuple[str, ...]
    order: str = ""
    only_if: str = ""
    whole: bool = False


_DEFAULTS: dict[str, Any] = {
    "tie_word_embeddings": False,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "max_position_embeddings": 2048,
}


@dataclass(frozen=True)
class Architecture:
    """One family of checkpoints. `gguf` is what general.architecture calls it; several families may share a name.

    `marks`: the setting whose presence says that a file of a shared name is of this family. `fixed`: config.json values
    that this architecture means (any other is refused on the way out). `flags`: flag -> the tensor that shows it.
    `defaults`: what config.json means where it leaves a key out. `ropes`: the kinds of rope scaling that llama.cpp has
    for it; `rotary` is false where positions are learned.
    """

    gguf: str
    model_type: str
    architecture: str
    settings: tuple[Setting, ...]
    tensors: tuple[Matrix, ...]
    marks: str = ""
    fixed: dict[str, Any] = field(default_factory=dict)
    flags: dict[str, str] = field(default_factory=dict)
    defaults: dict[str, Any] = field(default_factory=lambda: dict(_DEFAULTS))
    ropes: tuple[str, ...] = ("linear", "yarn")
    rotary: bool = True


_SETTINGS = (
    Setting("context_length", "max_position_embeddings", size="positions"),
    Setting("embedding_length", "hidden_size", size="hidden"),
    Setting("block_count", "num_hidden_layers", size="layers"),
    Setting("feed_forward_length", "intermediate_size", size="ffn"),
    Setting("attention.head_count", "num_attention_heads", size="heads"),
    Setting("attention.head_count_kv", "num_key_value_heads", size="kv_heads", required=False),
    Setting("attention.layer_norm_rms_epsilon", "rms_norm_eps", "f32"),
    Setting("rope.freq_base", "rope_theta", "f32", required=False),
    Setting("attention.key_length", "head_dim", size="head_dim", required=False),
)
_WINDOW = Setting("attention.sliding_window", "sliding_window", required=False)
_EXPERTS = (
    Setting("expert_count", "num_local_experts", size="experts"),
    Setting("expert_used_count", "num_experts_per_tok"),
)

_OUTSIDE = (
    Matrix("token_embd.weight", "model.embed_tokens.weight", ("vocab", "hidden")),
    Matrix("output_norm.weight", "model.norm.weight", ("hidden",)),
    Matrix("output.weight", "lm_head.weight", ("vocab", "hidden"), only_if="untied"),
)
_NORMS = (
    Matrix("blk.{i}.attn_norm.weight", "model.layers.{i}.input_layernorm.weight", ("hidden",)),
    Matrix("blk.{i}.ffn_norm.weight", "model.layers.{i}.post_attention_layernorm.weight", ("hidden",)),
)


def _attention(turned: bool, bias: str | None, output_bias: str | None) -> tuple[Matrix, ...]:
    """Its tensors. `bias`: the flag that biases hang on, empty where there always are some, None where there are none."""
    here, there = "blk.{i}.attn_", "model.layers.{i}.self_attn."
    q, k = ("q", "k") if turned else ("", "")
    found: tuple[Matrix, ...] = (
        Matrix(here + "q.weight", there + "q_proj.weight", ("q", "hidden"), q),
        Matrix(here + "k.weight", there + "k_proj.weight", ("kv", "hidden"), k),
        Matrix(here + "v.weight", there + "v_proj.weight", ("kv", "hidden")),
        Matrix(here + "output.weight", there + "o_proj.weight", ("hidden", "q")),
    )
    if bias is not None:
        found += (
            Matrix(here + "q.bias", there + "q_proj.bias", ("q",), q, bias),
            Matrix(here + "k.bias", there + "k_proj.bias", ("kv",), k, bias),
            Matrix(here + "v.bias", there + "v_proj.bias", ("kv",), "", bias),
        )
    if output_bias is not None:
        found += (Matrix(here + "output.bias", there + "o_proj.bias", ("hidden",), "", output_bias),)
    return found


_HEAD_NORMS = (
    Matrix("blk.{i}.attn_q_norm.weight", "model.layers.{i}.self_attn.q_norm.weight", ("head_dim",)),
    Matrix("blk.{i}.attn_k_norm.weight", "model.layers.{i}.self_attn.k_norm.weight", ("head_dim",)),
)
_FEED_FORWARD = (
    Matrix("blk.{i}.ffn_gate.weight", "model.layers.{i}.mlp.gate_proj.weight", ("ffn", "hidden")),
    Matrix("blk.{i}.ffn_up.weight", "model.layers.{i}.mlp.up_proj.weight", ("ffn", "hidden")),
    Matrix("blk.{i}.ffn_down.weight", "model.layers.{i}.mlp.down_proj.weight", ("hidden", "ffn")),
)
_FEED_FORWARD_BIAS = (
    Matrix("blk.{i}.ffn_gate.bias", "model.layers.{i}.mlp.gate_proj.bias", ("ffn",), only_if="mlp_bias"),
    Matrix("blk.{i}.ffn_up.bias", "model.layers.{i}.mlp.up_proj.bias", ("ffn",), only_if="mlp_bias"),
    Matrix("blk.{i}.ffn_down.bias", "model.layers.{i}.mlp.down_proj.bias", ("hidden",), only_if="mlp_bias"),
)


def _experts(block: str, gate: str, up: str, down: str, width: str) -> tuple[Matrix, ...]:
    there = "model.layers.{i}." + block
    return (
        Matrix("blk.{i}.ffn_gate_inp.weight", there + ".gate.weight", ("experts", "hidden"), whole=True),
        Matrix("blk.{i}.ffn_gate_exps.weight", f"{there}.experts.{{e}}.{gate}.weight", (width, "hidden")),
        Matrix("blk.{i}.ffn_up_exps.weight", f"{there}.experts.{{e}}.{up}.weight", (width, "hidden")),
        Matrix("blk.{i}.ffn_down_exps.weight", f"{there}.experts.{{e}}.{down}.weight", ("hidden", width)),
    )


_GPT2_SETTINGS = (
    Setting("context_length", "n_positions", size="positions"),
    Setting("embedding_length", "n_embd", size="hidden"),
    Setting("block_count", "n_layer", size="layers"),
    Setting("feed_forward_length", "n_inner", size="ffn"),
    Setting("attention.head_count", "n_head", size="heads"),
    Setting("attention.layer_norm_epsilon", "layer_norm_epsilon", "f32"),
)


def _with_bias(gguf: str, name: str, shape: tuple[str, ...], order: str = "") -> tuple[Matrix, ...]:
    outputs = shape[-1:]  # of a layer that is stored transposed, and of a norm
    return (
        Matrix(f"{gguf}.weight", f"transformer.{name}.weight", shape, order),
        Matrix(f"{gguf}.bias", f"transformer.{name}.bias", outputs),
    )


_GPT2_TENSORS = (
    Matrix("token_embd.weight", "transformer.wte.weight", ("vocab", "hidden")),
    Matrix("position_embd.weight", "transformer.wpe.weight", ("positions", "hidden"), whole=True),
    *_with_bias("output_norm", "ln_f", ("hidden",)),
    Matrix("output.weight", "lm_head.weight", ("vocab", "hidden"), only_if="untied"),
    *_with_bias("blk.{i}.attn_norm", "h.{i}.ln_1", ("hidden",)),
    *_with_bias("blk.{i}.attn_qkv", "h.{i}.attn.c_attn", ("hidden", "qkv"), "transposed"),
    *_with_bias("blk.{i}.attn_output", "h.{i}.attn.c_proj", ("hidden", "hidden"), "transposed"),
    *_with_bias("blk.{i}.ffn_norm", "h.{i}.ln_2", ("hidden",)),
    *_with_bias("blk.{i}.ffn_up", "h.{i}.mlp.c_fc", ("hidden", "ffn"), "transposed"),
    *_with_bias("blk.{i}.ffn_down", "h.{i}.mlp.c_proj", ("ffn", "hidden"), "transposed"),
)

_SILU = {"hidden_act": "silu"}
_UNTIED = {"untied": "output.weight"}
_ATTENTION_BIAS = {"attention_bias": "blk.0.attn_q.bias"}
_LLAMA_ROPES = ("linear", "yarn", "llama3")  # the last one as factors in a tensor of their own
_TURNED = (*_OUTSIDE, *_NORMS, *_attention(True, None, None))

FAMILIES = (
    Architecture(
        "llama",
        "mixtral",
        "MixtralForCausalLM",
        (*_SETTINGS, _WINDOW, *_EXPERTS),
        (*_TURNED, *_experts("block_sparse_moe", "w1", "w3", "w2", "ffn")),
        marks="expert_count",
        fixed=_SILU,
        flags=_UNTIED,
        defaults=_DEFAULTS
        | {"rope_theta": 1e6, "rms_norm_eps": 1e-5, "num_local_experts": 8, "num_experts_per_tok": 2},
        ropes=_LLAMA_ROPES,
    ),
    Architecture(
        "llama",
        "mistral",
        "MistralForCausalLM",
        (*_SETTINGS, _WINDOW),
        (*_TURNED, *_FEED_FORWARD),
        marks="attention.sliding_window",
        fixed=_SILU,
        flags=_UNTIED,
        ropes=_LLAMA_ROPES,
    ),
    Architecture(
        "llama",
        "llama",
        "LlamaForCausalLM",
        _SETTINGS,
        (
            *(*_OUTSIDE, *_NORMS, *_attention(True, "attention_bias", "attention_bias")),
            *(*_FEED_FORWARD, *_FEED_FORWARD_BIAS),
        ),
        fixed=_SILU,
        flags=_UNTIED | _ATTENTION_BIAS | {"mlp_bias": "blk.0.ffn_gate.bias"},
        ropes=_LLAMA_ROPES,
    ),
    Architecture(
        "qwen2",
        "qwen2",
        "Qwen2ForCausalLM",
        _SETTINGS,
        (*_OUTSIDE, *_NORMS, *_attention(False, "", None), *_FEED_FORWARD),
        fixed=_SILU | {"use_sliding_window": False},
        flags=_UNTIED,
    ),
    Architecture(
        "qwen3",
        "qwen3",
        "Qwen3ForCausalLM",
        _SETTINGS,
        (*_OUTSIDE, *_NORMS, *_attention(False, None, None), *_HEAD_NORMS, *_FEED_FORWARD),
        fixed=_SILU | {"use_sliding_window": False, "attention_bias": False},
        flags=_UNTIED,
    ),
    Architecture(
        "qwen3moe",
        "qwen3_moe",
        "Qwen3MoeForCausalLM",
        (
            *_SETTINGS,
            Setting("expert_count", "num_experts", size="experts", also="num_local_experts"),
            Setting("expert_used_count", "num_experts_per_tok"),
            Setting("expert_feed_forward_length", "moe_intermediate_size", size="expert_ffn"),
        ),
        (
            *(*_OUTSIDE, *_NORMS, *_attention(False, None, None), *_HEAD_NORMS),
            *_experts("mlp", "gate_proj", "up_proj", "down_proj", "expert_ffn"),
        ),
        fixed=_SILU
        | {"use_sliding_window": False, "attention_bias": False, "norm_topk_prob": True}
        | {"decoder_sparse_step": 1, "mlp_only_layers": []},
        flags=_UNTIED,
        defaults=_DEFAULTS | {"norm_topk_prob": False},
    ),
    Architecture(
        "gpt2",
        "gpt2",
        "GPT2LMHeadModel",
        _GPT2_SETTINGS,
        _GPT2_TENSORS,
        fixed={"activation_function": "gelu_new", "scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False},
        flags=_UNTIED,
        defaults={"tie_word_embeddings": True, "layer_norm_epsilon": 1e-5, "n_positions": 1024, "n_inner": None},
        ropes=(),
        rotary=False,
    ),
)

# Settings that would change what a model computes, with the values that say nothing; any other value is refused.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "attention.causal": (True,),
    "attention.clamp_kqv": (0,),
    "attention.scale": (0,),
    "attention.max_alibi_bias": (0,),
    "embedding_scale": (0, 1),
    "residual_scale": (0, 1),
    "logit_scale": (0, 1),
    "use_parallel_residual": (False,),
    "expert_shared_count": (0,),
    "expert_weights_norm": (True,),
    "expert_weights_scale": (0, 1),
    "expert_gating_func": (0, 1),
    "expert_group_count": (0, 1),
    "leading_dense_block_count": (0,),
    "nextn_predict_layers": (0,),
    "attn_logit_softcapping": (0,),
    "final_logit_softcapping": (0,),
    "vision.block_count": (0,),
}
