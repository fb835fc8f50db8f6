"""Model families: how each one's `config.json` keys and checkpoint names map onto ours, and what its layers are like.

A family is one `Family` row; no other file asks which family a model is of.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Traits:
    """What kind of layers a family has, where no size says it."""

    layer_norm: bool = False  # LayerNorm in place of RMSNorm
    learned_positions: bool = False  # a table of positions added to the embedding in place of rotation
    gated: bool = True  # three matrices with silu in place of two with gelu
    qkv_bias: bool = False  # biases on queries, keys and values
    bias: bool = False  # biases on every other matrix of a layer
    qk_norm: bool = False  # queries and keys normed head by head
    routed: bool = False  # experts in place of one feed-forward part


@dataclass(frozen=True)
class Link:
    """Our tensors laid end to end by rows are a file's tensors laid end to end, turned first where it keeps [in, out].

    "{i}" is the layer; names with "{e}" are repeated for each expert.
    """

    ours: tuple[str, ...]
    theirs: tuple[str, ...]
    transposed: bool = False


@dataclass(frozen=True)
class Family:
    """One family of decoders as its Hugging Face checkpoints spell it."""

    model_type: str
    architecture: str
    keys: dict[str, str]  # our ModelConfig field -> key in config.json
    defaults: dict[str, Any]  # config.json values that upstream assumes when a file leaves the key out
    fixed: dict[str, Any]  # config.json values this implementation requires; any other value is refused
    links: tuple[Link, ...]  # in the order of a file: outside the layers, a layer, outside the layers
    traits: Traits = Traits()
    window_switch: str = ""  # key that must be true for the window to count
    wide: int = 0  # feed-forward width in hidden sizes where a file leaves it out
    prefix: str = "model."  # of the body's names; a checkpoint of a bare body leaves it out
    derived: tuple[str, ...] = ()  # endings of names of tensors that follow from the config
    also: dict[str, str] = field(default_factory=dict)  # another key that some files have -> the usual one


def plain(names: dict[str, str], transposed: bool = False) -> tuple[Link, ...]:
    """One tensor of ours for one of theirs."""
    return tuple(Link((ours,), (theirs,), transposed) for ours, theirs in names.items())


def linear(ours: str, theirs: str, bias: bool, transposed: bool = False) -> tuple[Link, ...]:
    """A matrix, and its bias where there is one."""
    vector = (Link((f"{ours}.bias",), (f"{theirs}.bias",)),) if bias else ()
    return (Link((f"{ours}.weight",), (f"{theirs}.weight",), transposed), *vector)


LAYER, THEIRS = "layers.{i}.", "model.layers.{i}."
GATED = tuple(
    link for name in ("gate", "up", "down") for link in linear(f"{LAYER}mlp.{name}", f"{THEIRS}mlp.{name}_proj", False)
)


def experts(block: str, gate: str, up: str, down: str) -> tuple[Link, ...]:
    """A router and its experts, one file tensor an expert and matrix."""
    own = f"{THEIRS}{block}.experts.{{e}}."
    return (
        Link((f"{LAYER}mlp.router.weight",), (f"{THEIRS}{block}.gate.weight",)),
        Link((f"{LAYER}mlp.up.weight",), (f"{own}{gate}.weight", f"{own}{up}.weight")),
        Link((f"{LAYER}mlp.down.weight",), (f"{own}{down}.weight",)),
    )


def llama_like(traits: Traits = Traits(), feed_forward: tuple[Link, ...] = GATED) -> tuple[Link, ...]:
    """The names that Llama gave and others took over."""
    ours, theirs = f"{LAYER}attention.", f"{THEIRS}self_attn."
    attention = [linear(f"{ours}{n}", f"{theirs}{n}_proj", traits.qkv_bias) for n in ("q", "k", "v")]
    norms = {f"{ours}{n}_norm.weight": f"{theirs}{n}_norm.weight" for n in ("q", "k")} if traits.qk_norm else {}
    return (
        *plain({"embed.weight": "model.embed_tokens.weight"}),
        *plain({f"{LAYER}attention_norm.weight": f"{THEIRS}input_layernorm.weight"}),
        *(link for links in attention for link in links),
        *plain(norms),
        *linear(f"{ours}o", f"{theirs}o_proj", False),
        *plain({f"{LAYER}mlp_norm.weight": f"{THEIRS}post_attention_layernorm.weight"}),
        *feed_forward,
        *plain({"norm.weight": "model.norm.weight", "head.weight": "lm_head.weight"}),
    )


def gpt2_like() -> tuple[Link, ...]:
    """GPT-2's: matrices stored [in, out], queries, keys and values in one."""
    theirs = "transformer.h.{i}."
    qkv = tuple(f"{LAYER}attention.{n}" for n in ("q", "k", "v"))

    def norm(ours: str, name: str) -> tuple[Link, ...]:
        return plain({f"{ours}.{part}": f"{name}.{part}" for part in ("weight", "bias")})

    return (
        *plain({"embed.weight": "transformer.wte.weight", "positions.weight": "transformer.wpe.weight"}),
        *norm(f"{LAYER}attention_norm", f"{theirs}ln_1"),
        Link(tuple(f"{name}.weight" for name in qkv), (f"{theirs}attn.c_attn.weight",), transposed=True),
        Link(tuple(f"{name}.bias" for name in qkv), (f"{theirs}attn.c_attn.bias",)),
        *linear(f"{LAYER}attention.o", f"{theirs}attn.c_proj", True, transposed=True),
        *norm(f"{LAYER}mlp_norm", f"{theirs}ln_2"),
        *linear(f"{LAYER}mlp.up", f"{theirs}mlp.c_fc", True, transposed=True),
        *linear(f"{LAYER}mlp.down", f"{theirs}mlp.c_proj", True, transposed=True),
        *norm("norm", "transformer.ln_f"),
        *plain({"head.weight": "lm_head.weight"}),
    )


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
    "rope_scaling": "rope_scaling",
    "tied": "tie_word_embeddings",
    "bos": "bos_token_id",
    "eos": "eos_token_id",
    "pad": "pad_token_id",
    "init_std": "initializer_range",
}
WINDOW = {"window": "sliding_window"}
LATER_WINDOW = WINDOW | {"window_from": "max_window_layers"}
GPT2_KEYS = {
    "vocab": "vocab_size",
    "hidden": "n_embd",
    "ffn": "n_inner",
    "layers": "n_layer",
    "heads": "n_head",
    "max_positions": "n_positions",
    "norm_eps": "layer_norm_epsilon",
    "tied": "tie_word_embeddings",
    "bos": "bos_token_id",
    "eos": "eos_token_id",
    "pad": "pad_token_id",
    "init_std": "initializer_range",
}
LLAMA_DEFAULTS = {
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "initializer_range": 0.02,
}
QWEN_DEFAULTS = LLAMA_DEFAULTS | {"max_position_embeddings": 32768, "sliding_window": 4096, "max_window_layers": 28}
SILU = {"hidden_act": "silu"}
NO_BIAS = {"attention_bias": False}
INV_FREQ = (".rotary_emb.inv_freq",)  # older files store the rotary frequencies
BIASED, NORMED, ROUTED = Traits(qkv_bias=True), Traits(qk_norm=True), Traits(routed=True)
NORMED_ROUTED = Traits(qk_norm=True, routed=True)

ROWS = (
    Family(
        model_type="llama",
        architecture="LlamaForCausalLM",
        keys=LLAMA_KEYS,
        defaults=LLAMA_DEFAULTS,
        fixed=SILU | NO_BIAS | {"mlp_bias": False},
        links=llama_like(),
        derived=INV_FREQ,
    ),
    Family(
        model_type="mistral",
        architecture="MistralForCausalLM",
        keys=LLAMA_KEYS | WINDOW,
        defaults=LLAMA_DEFAULTS | {"max_position_embeddings": 131072, "sliding_window": 4096},
        fixed=SILU,
        links=llama_like(),
        derived=INV_FREQ,
    ),
    Family(
        model_type="qwen2",
        architecture="Qwen2ForCausalLM",
        keys=LLAMA_KEYS | LATER_WINDOW,
        defaults=QWEN_DEFAULTS,
        fixed=SILU,
        links=llama_like(BIASED),
        traits=BIASED,
        window_switch="use_sliding_window",
    ),
    Family(
        model_type="qwen3",
        architecture="Qwen3ForCausalLM",
        keys=LLAMA_KEYS | LATER_WINDOW,
        defaults=QWEN_DEFAULTS | {"head_dim": 128},
        fixed=SILU | NO_BIAS,
        links=llama_like(NORMED),
        traits=NORMED,
        window_switch="use_sliding_window",
    ),
    Family(
        model_type="gpt2",
        architecture="GPT2LMHeadModel",
        keys=GPT2_KEYS,
        defaults={
            "n_positions": 1024,
            "layer_norm_epsilon": 1e-5,
            "tie_word_embeddings": True,
            "initializer_range": 0.02,
            "bos_token_id": 50256,
            "eos_token_id": 50256,
        },
        fixed={
            "activation_function": "gelu_new",
            "scale_attn_weights": True,
            "scale_attn_by_inverse_layer_idx": False,
            "add_cross_attention": False,
        },
        links=gpt2_like(),
        traits=Traits(layer_norm=True, learned_positions=True, gated=False, qkv_bias=True, bias=True),
        wide=4,
        prefix="transformer.",
        derived=(".attn.bias", ".attn.masked_bias"),
    ),
    Family(
        model_type="mixtral",
        architecture="MixtralForCausalLM",
        keys=LLAMA_KEYS | WINDOW | {"experts": "num_local_experts", "topk": "num_experts_per_tok"},
        defaults=LLAMA_DEFAULTS
        | {"max_position_embeddings": 131072, "rms_norm_eps": 1e-5}
        | {"rope_theta": 1e6, "num_local_experts": 8, "num_experts_per_tok": 2},
        fixed=SILU,
        links=llama_like(ROUTED, experts("block_sparse_moe", "w1", "w3", "w2")),
        traits=ROUTED,
    ),
    Family(
        model_type="qwen3_moe",
        architecture="Qwen3MoeForCausalLM",
        keys=LLAMA_KEYS
        | WINDOW
        | {"ffn": "moe_intermediate_size", "experts": "num_experts", "topk": "num_experts_per_tok"}
        | {"norm_topk": "norm_topk_prob"},
        defaults=QWEN_DEFAULTS
        | {"moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8, "norm_topk_prob": False},
        fixed=SILU | NO_BIAS | {"decoder_sparse_step": 1, "mlp_only_layers": []},
        links=llama_like(NORMED_ROUTED, experts("mlp", "gate_proj", "up_proj", "down_proj")),
        traits=NORMED_ROUTED,
        window_switch="use_sliding_window",
        also={"num_local_experts": "num_experts"},
    ),
)
FAMILIES = {row.model_type: row for row in ROWS}
