"""Parameters of an architecture, all of them and those one token uses, and the matrix products a token costs.

Closed forms, apart from the description of layers, so that each can be held against the other.
"""

from __future__ import annotations

from burnish.architecture import Architecture
from burnish.mesh import N, pick

CONVOLUTION = 4  # taps of a mixer's convolution (Dao and Gu 2024, Mamba-2)


def parameters(model: Architecture) -> N:
    """Number of parameters, further-token layers included; a tied head counts once."""
    extra = pick(model.positions > 0, model.positions * model.hidden, 0) + model.vocab * model.hidden
    return extra + _body(model, model.experts) + pick(model.tied > 0, 0, model.vocab * model.hidden)


def active_parameters(model: Architecture) -> N:
    """Parameters that one token uses: experts it is not sent to, look-up tables and further-token layers left out."""
    return _layers(model, model.topk, 0) + _norm(model) + model.vocab * model.hidden


def matrix_parameters(model: Architecture) -> N:
    """Parameters of the matrix products a token passes in training: a further-token layer uses the head again."""
    return _layers(model, model.topk, model.mtp) + model.vocab * model.hidden * (1 + model.mtp)


def causal_flops(model: Architecture, seq: N) -> N:
    """FLOPs a token, forward and backward: six a parameter in products, and the half of attention that causality leaves.

    Kaplan et al. 2020 (section 2.1) for the products; attention and a mixer's scan (seven FLOPs a state and channel) as
    Megatron-LM counts them. A window is met by each token but the first ones in full.
    """
    width = pick(model.kv_rank > 0, model.head_dim + model.rope_dim, model.head_dim)
    values = pick(model.value_dim > 0, model.value_dim, model.head_dim)
    whole = (attending(model) + model.mtp - model.windowed_layers) * seq
    window = pick((model.window > 0) & (model.window < seq), 2 * model.window - model.window * model.window // seq, seq)
    scores = model.heads * (width + values) * (whole + model.windowed_layers * window) // 2
    scan = 7 * model.mixer_layers * model.mixer_heads * model.mixer_head_dim * model.mixer_state // 2
    return 6 * (matrix_parameters(model) + scores + scan)


def attending(model: Architecture) -> N:
    """Layers that attend."""
    return pick(model.attention_layers < 0, model.layers, model.attention_layers)


def dense(model: Architecture) -> N:
    """Layers with a dense feed-forward part."""
    return pick(model.dense_layers < 0, model.layers - model.expert_layers, model.dense_layers)


def _body(model: Architecture, experts: N) -> N:
    return _layers(model, experts, model.mtp) + _norm(model)


def _layers(model: Architecture, experts: N, mtp: N) -> N:
    """Of all layers with `experts` experts each; a further-token layer is one of the last kind and joins two rows."""
    routed, plain = model.expert_layers, dense(model)
    joint = 2 * model.hidden * model.hidden + 2 * _norm(model)
    blocks = attending(model) * _attention(model) + model.mixer_layers * _mixer(model)
    blocks = blocks + plain * _dense(model) + routed * _experts(model, experts)
    last = pick(model.experts > 0, _experts(model, experts), _dense(model))
    return blocks + mtp * (joint + _attention(model) + last + _norm(model))


def _norm(model: Architecture) -> N:
    return model.hidden * (1 + model.layer_norm)


def _attention(model: Architecture) -> N:
    h, heads = model.hidden, model.heads
    plain = h * model.head_dim * (2 * heads + 2 * model.kv_heads)
    biases = (model.layer_norm + model.qkv_bias) * model.head_dim * (heads + 2 * model.kv_heads)
    biases = biases + model.layer_norm * h + 2 * model.qk_norm * model.head_dim
    values = pick(model.value_dim > 0, model.value_dim, model.head_dim)
    wide = heads * (model.head_dim + model.rope_dim)
    query = pick(model.q_rank > 0, h * model.q_rank + model.q_rank * (wide + 1), h * wide)
    keys = h * (model.kv_rank + model.rope_dim) + model.kv_rank * (heads * (model.head_dim + values) + 1)
    return pick(model.kv_rank > 0, query + keys + heads * values * h, plain) + biases + _norm(model)


def _matrices(model: Architecture) -> N:
    return 2 + model.gated


def _dense(model: Architecture) -> N:
    biases = model.layer_norm * ((1 + model.gated) * model.ffn + model.hidden)
    return _matrices(model) * model.hidden * model.ffn + biases + _norm(model)


def _experts(model: Architecture, experts: N) -> N:
    h = model.hidden
    width = pick(model.routed_width > 0, model.routed_width, h)
    latent = pick(model.routed_width > 0, 2 * h * width, 0)
    routed = experts * _matrices(model) * width * model.expert_ffn
    return h * model.experts + latent + routed + _matrices(model) * h * model.shared_ffn + _norm(model)


def _mixer(model: Architecture) -> N:
    inner = model.mixer_heads * model.mixer_head_dim
    mixed = inner + 2 * model.mixer_groups * model.mixer_state
    entry = model.hidden * (inner + mixed + model.mixer_heads)
    return entry + mixed * (CONVOLUTION + 1) + 3 * model.mixer_heads + inner * (1 + model.hidden) + _norm(model)
