"""Describe: a decoder's sizes and a batch's shape -> the Work of one process, before any technique."""

from __future__ import annotations

from burnish.architecture import Architecture, architecture
from burnish.config import ModelConfig
from burnish.decoder_parts import (
    attention_part,
    dense_part,
    embedding,
    further_part,
    has,
    head,
    mixer_part,
    norm,
)
from burnish.expert_parts import expert_part
from burnish.mesh import N, pick
from burnish.shapes import Shapes as Shapes
from burnish.shapes import batch_arithmetic as batch_arithmetic
from burnish.shapes import shapes_of as shapes_of
from burnish.stack import OURS, Stack
from burnish.work import Block, Op, Work

SAVED_TABLE = "torch 2.13"


def describe(model: ModelConfig | Architecture, shapes: Shapes, stack: Stack = OURS) -> Work:
    """The work of one process training `model` on micro batches of `shapes`, with AdamW.

    One block for each kind of layer the model has: dense, with experts, with a state-space mixer.
    """
    sizes = architecture(model) if isinstance(model, ModelConfig) else model
    T = shapes.rows * shapes.seq
    blocks = [Block("embed", 1, (embedding(sizes, shapes, T, stack),))]
    dense, routed = _layers(sizes)
    attending = pick(sizes.attention_layers >= 0, sizes.attention_layers, dense + routed)
    kinds: tuple[tuple[str, N, tuple[Op, ...]], ...]
    if has(sizes.mixer_layers):
        kinds = (
            ("attending", attending + sizes.mtp, attention_part(sizes, shapes, T)),
            ("mixing", sizes.mixer_layers, mixer_part(sizes, T)),
            ("routed", routed + sizes.mtp, expert_part(sizes, T, stack)),
            ("dense", dense, dense_part(sizes, T)),
        )
    else:
        attend = attention_part(sizes, shapes, T)
        kinds = (("layer", dense, attend + dense_part(sizes, T)),)
        if has(sizes.experts):
            kinds = (*kinds, ("expert layer", routed + sizes.mtp, attend + expert_part(sizes, T, stack)))
    for name, count, ops in kinds:
        if name == "layer" or has(count):
            blocks.append(Block(name, count, ops, entering=ops[0].saved[0]))
    last = head(T, sizes, stack)
    if has(sizes.mtp):
        blocks.append(Block("further", sizes.mtp, further_part(sizes, T, last)))
    blocks.append(Block("head", 1, (norm("norm", T, sizes.hidden, sizes.layer_norm), last)))
    return Work(
        tuple(blocks),
        shapes.micro,
        T,
        shapes.step_rows * shapes.seq,
        head_layers=head_layers(blocks),
    )


def head_layers(blocks: list[Block]) -> N:
    """What the head, which is the last block, weighs in layers: its products by those of a layer, the mean over all kinds."""
    return _products(blocks[-1]) / _layer(blocks)


def _products(block: Block) -> N:
    """FLOPs of one layer of a kind, both ways."""
    return sum(op.flops + op.backward for op in block.ops)


def _layer(blocks: list[Block]) -> N:
    """FLOPs of a layer both ways, the mean over all kinds."""
    inside = [block for block in blocks if block.entering]
    return sum(block.layers * _products(block) for block in inside) / sum(block.layers for block in inside)


def _layers(model: Architecture) -> tuple[N, N]:
    """(dense, routed) layers by their feed-forward part."""
    dense = pick(model.dense_layers >= 0, model.dense_layers, model.layers - model.expert_layers)
    return dense, model.expert_layers
