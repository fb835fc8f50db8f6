"""Describe an encoder: its sizes and a batch's shape -> the Work of one process, before any technique.

Each line of saved tensors is one line of `models/encoder.py` or of the loss in `train/classification.py`.

Letters: T tokens of a micro batch, P texts in it, H hidden, F feed-forward, C classes.
"""

from __future__ import annotations

from burnish.architecture import Architecture
from burnish.decoder_parts import attention, linear, norm, residual
from burnish.encoders.config import EncoderConfig
from burnish.mesh import N
from burnish.shapes import Shapes
from burnish.tables.encoders import NONE, SEQUENCE
from burnish.work import ACTIVATION, COLUMN, INDEX, ROW, STATISTIC, Block, Op, Saved, Work

KEEPS_RESULT = ("relu",)  # activations whose backward reads what they gave, which the next product keeps anyhow


def describe_encoder(config: EncoderConfig, shapes: Shapes) -> Work:
    """The work of one process training `config` on micro batches of `shapes`, with AdamW; one block for each kind of layer.

    Token types are those of single texts: none is given.
    """
    T = shapes.rows * shapes.seq
    layer = _layer(config, shapes, T)
    blocks = [Block("embed", 1, _embeddings(config, shapes, T))]
    blocks.append(Block("layer", config.layers, layer, entering=layer[0].saved[0]))
    if config.head == SEQUENCE:
        texts = shapes.rows if shapes.pieces is None else shapes.pieces
        blocks.append(Block("head", 1, (*_pooler(config, texts), *_head(config, texts, "pooled"))))
    elif config.head != NONE:
        blocks.append(Block("head", 1, _head(config, T, "hidden")))
    elif config.pooler:
        blocks.append(Block("head", 1, (linear("pooler", 0, config.hidden, config.hidden, bias=1),)))
    return Work(tuple(blocks), shapes.micro, T, shapes.step_rows * shapes.seq)


def _embeddings(config: EncoderConfig, shapes: Shapes, T: N) -> tuple[Op, ...]:
    """Tables of tokens, positions and types, summed and normed."""
    H = config.hidden
    saved = (Saved("ids", INDEX, T), Saved("positions", INDEX, T if shapes.packed else shapes.seq))
    tables = tuple((rows, H) for rows in (config.vocab, config.table, config.types))
    return (
        Op("embed", tables, saved=saved, moved=4 * T * H, split=COLUMN),
        norm("embed_norm", T, H, layer_norm=1),
    )


def _layer(config: EncoderConfig, shapes: Shapes, T: N) -> tuple[Op, ...]:
    """Attention and feed-forward part, each with its sum and the norm behind it."""
    H, F, heads = config.hidden, config.ffn, config.heads
    sizes = Architecture(config.family, config.vocab, H, config.layers, heads, heads, config.head_dim, F)
    before = T * F * (config.act not in KEEPS_RESULT)
    return (
        linear("q", T, H, H, keeps="input", bias=1),
        linear("k", T, H, H, bias=1),
        linear("v", T, H, H, bias=1),
        attention(shapes, T, sizes),
        linear("o", T, H, H, split=ROW, bias=1),
        residual("attention_sum", T, H),
        norm("attention_norm", T, H, layer_norm=1),
        linear("up", T, H, F, keeps="normed", bias=1),
        Op("activation", saved=(Saved("up", ACTIVATION, before, COLUMN),), moved=2 * T * F, loose=T * F, split=COLUMN),
        linear("down", T, F, H, keeps="activated", split=ROW, bias=1),
        residual("mlp_sum", T, H),
        norm("mlp_norm", T, H, layer_norm=1),
    )


def _pooler(config: EncoderConfig, texts: N) -> tuple[Op, ...]:
    """The first position of each text, a dense layer and tanh, whose result the head keeps."""
    H = config.hidden
    return (
        Op("first", saved=(Saved("first positions", INDEX, texts),), moved=2 * texts * H),
        linear("pooler", texts, H, H, keeps="first", bias=1),
        Op("tanh", moved=2 * texts * H),
    )


def _head(config: EncoderConfig, count: N, keeps: str) -> tuple[Op, ...]:
    """Scores of `count` texts or tokens and their loss, whose sum of weights is one number."""
    C = len(config.labels)
    probabilities = (Saved("log probabilities", STATISTIC, count * C), Saved("weights", STATISTIC, 1))
    return (
        linear("head", count, config.hidden, C, keeps=keeps, bias=1),
        Op("loss", saved=(*probabilities, Saved("labels", INDEX, count)), moved=2 * count * C),
    )
