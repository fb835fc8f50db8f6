"""Decoder parts: the operations of each part of a decoder, with their parameters, products, saved tensors and traffic.

The saved tensors of the decoder that trains here are those of `models/` under the torch version named in
`describe.SAVED_TABLE`; each of their lines is one line of the decoder, so the two files are read side by side.

Letters: T tokens of a micro batch, H hidden, F feed-forward, V vocabulary, N query heads, K key/value heads, D head size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from burnish.architecture import Architecture
from burnish.mesh import N, pick
from burnish.shapes import Shapes
from burnish.stack import Stack
from burnish.work import ACTIVATION, COLUMN, HEADS, INDEX, ROUNDED, ROW, STATISTIC, WIDENED, Op, Saved

CHUNK = 512  # tokens whose logits exist at a time, as in ops/cross_entropy.py


def has(size: N) -> bool:
    """Whether any of the described jobs has this part."""
    return bool(np.any(np.asarray(size) > 0))


def vector(flag: N, size: N) -> tuple[tuple[N, ...], ...]:
    """The shape of a vector that only some of the described jobs have."""
    return ((flag * size,),) if has(flag) else ()


def linear(name: str, tokens: N, inputs: N, outputs: N, keeps: str = "", split: str = COLUMN, bias: N = 0) -> Op:
    """y = x W^T + b: 2 T in out FLOPs, twice that backward. `keeps` names the saved input; layers that share it name it once."""
    flops = 2 * tokens * inputs * outputs
    kept = Saved(keeps, ACTIVATION, tokens * inputs, COLUMN if split == ROW else "tokens")
    return Op(
        name,
        ((outputs, inputs), *vector(bias, outputs)),
        flops,
        2 * flops,
        (kept,) if keeps else (),
        group="matmul",
        split=split,
        made=tokens * outputs,
    )


def norm(name: str, tokens: N, size: N, layer_norm: N = 0) -> Op:
    """A norm keeps its input and one statistic a token, LayerNorm two; the gradient of RMSNorm's weight is a
    vector-matrix product."""
    saved = (Saved("input", ACTIVATION, tokens * size), Saved("rstd", STATISTIC, tokens * (1 + layer_norm)))
    shapes = ((size,), *vector(layer_norm, size))
    return Op(name, shapes, backward=2 * tokens * size * (1 - layer_norm), saved=saved, moved=2 * tokens * size)


def residual(name: str, tokens: N, size: N) -> Op:
    """x + y: two tensors read, one written."""
    return Op(name, moved=3 * tokens * size)


def attention(shapes: Shapes, tokens: N, model: Architecture) -> Op:
    """Flash attention, full convention: 4 D FLOPs a pair and head forward, 10 D backward (five products, one repeated).

    With stored scores it keeps and moves one element a head and pair in place of the statistic.
    """
    pairs = shapes.rows * shapes.seq * shapes.seq if shapes.pairs is None else shapes.pairs
    heads, keys, values = model.heads, model.head_dim + model.rope_dim, _value_dim(model)
    output = tokens * heads * values
    inputs = tokens * (heads * keys + model.kv_heads * (keys + values))
    returned = (
        Saved("output", ACTIVATION, output, COLUMN),
        Saved("log-sum-exp", STATISTIC, tokens * heads, COLUMN),
    )
    joined = (Saved("joined output", ACTIVATION, output, COLUMN),) if shapes.packed else ()
    saved = (Saved("q, k, v", ACTIVATION, inputs, COLUMN), *returned, *joined)
    flops = 2 * pairs * heads * (keys + values)
    scores = shapes.scores * heads * pairs
    launches = 1 + 4 * shapes.scores
    return Op(
        "attention",
        (),
        flops,
        flops // 2 * 5,
        saved,
        group="attention",
        split=COLUMN,
        scores=scores,
        width=(keys + values) / 2,
        passed=tokens * model.kv_heads * (keys + values),
        launches=launches,
    )


def _value_dim(model: Architecture) -> N:
    return pick(model.value_dim > 0, model.value_dim, model.head_dim)


def embedding(model: Architecture, shapes: Shapes, T: N, stack: Stack) -> Op:
    """Tables of tokens and, where they are learned, of positions; what all layers share is kept here, once."""
    rows, rotated = T if shapes.packed else shapes.seq, 1 - (model.positions > 0) * 1
    positions = ((model.positions, model.hidden),) if has(model.positions) else ()
    masked = (model.window > 0) & (model.window < shapes.seq) & (stack.window_mask > 0)
    saved = (
        Saved("ids", INDEX, T),
        Saved("angles", ACTIVATION, rows * model.head_dim * rotated),
        Saved("positions", INDEX, rows * (1 - rotated)),
        Saved("window", ACTIVATION, pick(masked, shapes.seq * shapes.seq, 0)),
    )
    table = ((model.vocab, model.hidden), *positions)
    return Op("embed", table, saved=saved, moved=3 * T * model.hidden, split=COLUMN, windowed=model.windowed_layers)


def attention_part(model: Architecture, shapes: Shapes, T: N) -> tuple[Op, ...]:
    """Norm, projections, rotation, attention, output projection and residual sum."""
    H, heads, kv_heads, dim = model.hidden, model.heads, model.kv_heads, model.head_dim
    biased = model.qkv_bias + model.layer_norm
    normed: tuple[Op, ...] = ()
    if has(model.kv_rank):
        projections = _latent_projections(model, T)
    else:
        projections = (
            linear("q", T, H, heads * dim, keeps="normed", bias=biased),
            linear("k", T, H, kv_heads * dim, bias=biased),
            linear("v", T, H, kv_heads * dim, bias=biased),
        )
        normed = tuple(_head_norms(model, T)) if has(model.qk_norm) else ()
    rotated = Op("rotary", moved=2 * T * (heads + kv_heads) * (dim + model.rope_dim), split=COLUMN)
    return (
        norm("attention_norm", T, H, model.layer_norm),
        *projections,
        *normed,
        rotated,
        attention(shapes, T, model),
        linear("o", T, heads * _value_dim(model), H, split=ROW, bias=model.layer_norm),
        residual("attention_sum", T, H),
    )


def _head_norms(model: Architecture, T: N) -> Iterator[Op]:
    """Queries and keys normed head by head, all heads with one weight."""
    for name, heads in (("q_norm", model.heads), ("k_norm", model.kv_heads)):
        one = norm(name, T * heads * model.qk_norm, model.head_dim)
        shapes = ((model.head_dim * model.qk_norm,),)
        yield replace(one, shapes=shapes, saved=tuple(replace(s, split=COLUMN) for s in one.saved), split=HEADS)


def _latent_projections(model: Architecture, T: N) -> tuple[Op, ...]:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1): keys and values, and where it has a rank
    the query too, pass a narrow vector."""
    H, heads, dim, rope = model.hidden, model.heads, model.head_dim, model.rope_dim
    narrow = pick(model.q_rank > 0, model.q_rank, H)
    return (
        linear("q_down", T, H, model.q_rank, keeps="normed", split="tokens"),
        linear("q", T, narrow, heads * (dim + rope), keeps="query vector"),
        linear("kv_down", T, H, model.kv_rank + rope, split="tokens"),
        linear("kv", T, model.kv_rank, heads * (dim + _value_dim(model)), keeps="key-value vector"),
        Op("latent_norms", ((model.q_rank + model.kv_rank,),), moved=2 * T * (model.q_rank + model.kv_rank)),
    )


def dense_part(model: Architecture, T: N) -> tuple[Op, ...]:
    """Norm, feed-forward and residual sum."""
    H, F = model.hidden, model.ffn
    wide = (1 + model.gated) * F
    gate: tuple[Op, ...] = ()
    if has(model.gated):
        biased = model.layer_norm * model.gated
        gate = (replace(linear("gate", T, H, F * model.gated, keeps="normed", bias=biased), launches=model.gated),)
    return (
        norm("mlp_norm", T, H, model.layer_norm),
        *gate,
        linear("up", T, H, F, keeps="" if gate else "normed", bias=model.layer_norm),
        Op(
            "gated_silu",
            saved=(Saved("gate, up", ACTIVATION, T * wide, COLUMN),),
            moved=T * (wide + F),
            loose=T * F * (1 - model.gated),
            split=COLUMN,
        ),
        linear("down", T, F, H, keeps="product", split=ROW, bias=model.layer_norm),
        residual("mlp_sum", T, H),
    )


def further_part(model: Architecture, T: N, last: Op) -> tuple[Op, ...]:
    """What predicts one token further (DeepSeek-V3, arXiv 2412.19437, section 2.2) beside a layer of its own: hidden states
    and embeddings joined, and the loss once more, through the same head."""
    H = model.hidden
    return (
        norm("join_norm", T, 2 * H),
        linear("join", T, 2 * H, H, keeps="joined", split="tokens"),
        replace(last, shapes=()),
    )


def mixer_part(model: Architecture, T: N) -> tuple[Op, ...]:
    """Norm, state-space mixer (Dao & Gu 2024, arXiv 2405.21060) and residual sum.

    Its chunked scan costs about 6 FLOPs a head element and state, and moves its inputs a few times over.
    """
    H, inner = model.hidden, model.mixer_heads * model.mixer_head_dim
    states = 2 * model.mixer_groups * model.mixer_state
    inputs = 2 * inner + states + model.mixer_heads
    scan = 6 * T * inner * model.mixer_state
    kept = Saved("scan", ACTIVATION, T * (2 * inner + states), COLUMN)
    return (
        norm("mixer_norm", T, H),
        linear("mixer_in", T, H, inputs, keeps="normed"),
        Op(
            "scan",
            ((inner + states, 4),),
            scan,
            2 * scan,
            (kept,),
            moved=8 * T * inner,
            group="scan",
            split=COLUMN,
            launches=8,
        ),
        linear("mixer_out", T, inner, H, keeps="product", split=ROW),
        residual("mixer_sum", T, H),
    )


def head(tokens: N, model: Architecture, stack: Stack) -> Op:
    """The projection to logits and the loss.

    Chunked cross entropy makes its gradients in forward: three products there, none in backward. It keeps the gradients
    of the hidden states and of the weight; a tied weight is the embedding's and counted there. While it runs there are
    the float32 logits of one chunk and, in 16 bits, their rounded copy and the weight's gradient summed in float32.
    Elsewhere the logits are kept whole.
    """
    hidden, vocab = model.hidden, model.vocab
    product = 2 * tokens * hidden * vocab
    weight = () if isinstance(model.tied, int) and model.tied else (((1 - model.tied) * vocab, hidden),)
    if not has(stack.chunked_loss):
        kept = Saved("input", ACTIVATION, tokens * hidden)
        logits = Saved("logits", "logit", tokens * vocab, COLUMN)
        return Op(
            "head", weight, product, 2 * product, (kept,), (logits,), group="head", split=COLUMN, made=tokens * vocab
        )
    rows = pick(tokens > CHUNK, CHUNK, tokens) * vocab
    transient = (
        Saved("logits", STATISTIC, rows),
        Saved("logits", ROUNDED, rows),
        Saved("weight gradient", WIDENED, vocab * hidden),
    )
    saved = (
        Saved("hidden gradient", ACTIVATION, tokens * hidden),
        Saved("weight gradient", ACTIVATION, vocab * hidden),
    )
    return Op("head", weight, 3 * product, 0, saved, transient, group="head", split=COLUMN, made=tokens * vocab)
