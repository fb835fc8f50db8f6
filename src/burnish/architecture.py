"""Architecture: the sizes of a decoder as a planner needs them, for every kind of decoder it can price.

Only numbers, each of which may also be an int64 array with one entry per job: one description prices a single model and
a whole table of published runs. What this package can train is a `ModelConfig`, which is the smaller set.
"""

from __future__ import annotations

from dataclasses import dataclass

from burnish.config import ModelConfig
from burnish.mesh import N


@dataclass(frozen=True)
class Architecture:
    """Sizes in elements; flags are 0 or 1.

    A layer is attention (or a state-space mixer) and a feed-forward part, dense or routed. `layers` counts decoder layers
    of the usual kind; hybrids say apart how many layers attend (`attention_layers`), mix (`mixer_layers`), have a dense
    feed-forward part (`dense_layers`) or experts (`expert_layers`).
    """

    name: str
    vocab: N
    hidden: N
    layers: N
    heads: N
    kv_heads: N
    head_dim: N
    ffn: N = 0  # width of a dense feed-forward part
    gated: N = 1  # three matrices instead of two
    clamped: N = 0  # 1 where the gate is of a form that libraries run as several kernels (GPT-OSS)
    tied: N = 0
    positions: N = 0  # rows of a learned position table; 0 = rotary
    layer_norm: N = 0  # LayerNorm with biases, and biases on the linear layers (GPT-2, GPT-3)
    qkv_bias: N = 0  # biases on queries, keys and values alone (Qwen2)
    qk_norm: N = 0  # queries and keys normed head by head (Qwen3)
    attention_layers: N = -1  # -1 = layers
    dense_layers: N = -1  # -1 = layers - expert_layers
    window: N = 0  # sliding window in tokens
    windowed_layers: N = 0  # how many attention layers have it
    experts: N = 0
    topk: N = 0
    norm_topk: N = 0  # 1 where a token's experts are weighted by their shares of the chosen ones
    expert_ffn: N = 0
    shared_ffn: N = 0  # width of what every token passes beside its experts
    expert_layers: N = 0
    routed_width: N = 0  # width of what is sent to experts where it is not `hidden`
    q_rank: N = 0  # multi-head latent attention: ranks of the compressed query and key-value; 0 = plain heads
    kv_rank: N = 0
    rope_dim: N = 0  # its rotary part of a head, beside head_dim
    value_dim: N = 0  # its value head; 0 = head_dim
    mixer_layers: N = 0  # state-space layers (Mamba-2)
    mixer_heads: N = 0
    mixer_head_dim: N = 0
    mixer_state: N = 0
    mixer_groups: N = 0
    mtp: N = 0  # further layers that predict further tokens (multi-token prediction)
    max_positions: N = 0  # longest sequence; 0 = not stated


def architecture(config: ModelConfig) -> Architecture:
    """The sizes of a decoder that can be trained here."""
    traits = config.traits
    routed = {"experts": config.experts, "topk": config.topk, "expert_ffn": config.ffn, "expert_layers": config.layers}
    routed["norm_topk"] = int(config.norm_topk)
    window = {"window": config.window, "windowed_layers": config.layers - config.window_from}
    return Architecture(
        name=config.family,
        vocab=config.vocab,
        hidden=config.hidden,
        layers=config.layers,
        heads=config.heads,
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        gated=int(traits.gated),
        tied=int(config.tied),
        positions=config.max_positions * traits.learned_positions,
        layer_norm=int(traits.layer_norm),
        qkv_bias=int(traits.qkv_bias and not traits.layer_norm),
        qk_norm=int(traits.qk_norm),
        max_positions=config.max_positions,
        **(routed if traits.routed else {"ffn": config.ffn}),
        **(window if config.window else {}),
    )
