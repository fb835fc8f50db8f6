"""Graphs of a decoder cut at its attentions, of onnxruntime's fastest operators, matrices in whatever format the model has them.

A graph closes one layer and opens the next: output product, norm, feed-forward part, norm, and the products of queries, keys
and values, which are one, as are those of gate and up. Shape letters: T packed tokens, R rows whose scores are asked for.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from burnish.config import ModelConfig
from burnish.errors import UserError
from burnish.export.onnx_graph import FLOAT, INT64, Graph
from burnish.export.onnx_linear import Form, linear
from burnish.export.onnx_matrix import Matrix, array, matrix_of
from burnish.export.onnx_parts import activation, add_norm, gated_silu, looked_up, norm, vector
from burnish.models.decoder import Block, Decoder
from burnish.models.rotary import rotary_angles
from burnish.onnx_layout import TABLES
from burnish.serve.runners.blocks import Blocks, blocks4, product

Weights = Literal["float", "q4"]
Hold = Callable[[Matrix], Blocks]
HOLD: dict[str, Hold] = {"float": Blocks, "q4": blocks4}
INPUT = "input_scale"  # of a matrix whose inputs are rounded by one scale
OPSET = 23


def graphs_of(
    model: Decoder, config: ModelConfig, words: Matrix | None, weights: Weights, accuracy: int
) -> list[Graph]:
    """The graph before the first attention, those between two, and the one after the last, which ends in scores."""
    form, hold = Form(fused=True, accuracy=accuracy), HOLD[weights]
    head = words or matrix_of("head", model.head)
    embed = head if config.tied else matrix_of("embed", model.embed)
    layers = [block for block in model.layers if isinstance(block, Block)]
    between = [_between(one, other, config, form, hold) for one, other in itertools.pairwise(layers)]
    return [_first(model, form, embed, hold), *between, _last(model, form, head, hold)]


def _first(model: Decoder, form: Form, embed: Matrix, hold: Hold) -> Graph:
    """Token ids and positions to the first layer's hidden states, queries, keys and values."""
    graph = Graph("first", OPSET)
    graph.input("ids", INT64, ("tokens",))
    x = looked_up(graph, form, "embed", embed, "ids")
    if model.positions is not None:
        flat = graph.add("Reshape", "positions", graph.ints(-1))
        x = graph.add("Add", x, looked_up(graph, form, "learned", matrix_of("positions", model.positions), flat))
    block = model.layers[0]
    assert isinstance(block, Block)
    normed = norm(graph, form, "norm", block.attention_norm, x)
    return _opened(graph, form, hold, block, model.shape, (x, normed))


def _between(block: Block, after: Block, config: ModelConfig, form: Form, hold: Hold) -> Graph:
    """What attention gave of one layer to the hidden states, queries, keys and values of the next."""
    graph = Graph("between", OPSET)
    x, more = _closed(graph, form, hold, block)
    normed, x = add_norm(graph, form, "norm", after.attention_norm, x, more)
    return _opened(graph, form, hold, after, config, (x, normed))


def _last(model: Decoder, form: Form, head: Matrix, hold: Hold) -> Graph:
    """What attention gave of the last layer to scores."""
    graph = Graph("last", OPSET)
    block = model.layers[-1]
    assert isinstance(block, Block)
    x, more = _closed(graph, form, hold, block)
    normed, _ = add_norm(graph, form, "norm", model.norm, x, more)
    graph.output(linear(graph, form, "head", head, normed), "scores", FLOAT, ("rows", model.shape.vocab))
    return graph


def _closed(graph: Graph, form: Form, hold: Hold, block: Block) -> tuple[str, str]:
    """Output product and feed-forward part of a layer: the sum before the latter, and what it adds."""
    o = matrix_of("o", block.attention.o)
    graph.input("hidden", FLOAT, ("tokens", o.shape[0]))
    graph.input("attended", FLOAT, ("tokens", o.shape[1]))
    normed, x = add_norm(
        graph, form, "mlp_norm", block.mlp_norm, "hidden", product(graph, form, "o", hold(o), "attended")
    )
    mlp: Any = block.mlp
    if hasattr(mlp, "gate"):
        both = product(
            graph, form, "gate_up", hold(stacked([matrix_of("gate", mlp.gate), matrix_of("up", mlp.up)])), normed
        )
        gate, up = graph.add_many("Split", both, outputs=2, axis=-1, num_outputs=2)
        inner = gated_silu(graph, form, gate, up)
    else:
        inner = activation(graph, "gelu_tanh", product(graph, form, "up", hold(matrix_of("up", mlp.up)), normed))
    return x, product(graph, form, "down", hold(matrix_of("down", mlp.down)), inner)


def _opened(graph: Graph, form: Form, hold: Hold, block: Block, config: Any, given: tuple[str, str]) -> Graph:
    """Queries, keys and values of a layer, normed and turned as its family does it."""
    (x, normed), attention, size = given, block.attention, config.head_dim
    graph.input("positions", INT64, (1, "tokens"))
    counts = (config.heads, config.kv_heads, config.kv_heads)
    modules: tuple[nn.Module, ...] = (attention.q, attention.k, attention.v)
    whole = product(graph, form, "qkv", hold(stacked([matrix_of("qkv", module) for module in modules])), normed)
    parts = graph.add_many("Split", whole, graph.ints(*(count * size for count in counts)), outputs=3, axis=-1)
    graph.output(x, "hidden_out", FLOAT, ("tokens", config.hidden))
    norms = (attention.q_norm, attention.k_norm, None)
    for name, part, count, own in zip("qkv", parts, counts, norms, strict=True):
        if own is not None:
            apart = graph.add("Reshape", part, graph.ints(-1, count, size))
            part = graph.add("Reshape", norm(graph, form, f"{name}_norm", own, apart), graph.ints(-1, count * size))
        if name != "v" and not config.traits.learned_positions:
            part = _turned(graph, config, part, count)
        graph.output(part, name, FLOAT, ("tokens", count * size))
    return graph


def _turned(graph: Graph, config: Any, part: str, count: int) -> str:
    """Rotary positions of [T, heads * D]."""
    every = torch.arange(config.max_positions)[None]
    angles = rotary_angles(every, config.head_dim, config.rope_theta, torch.float32, config.rope_scaling)
    tables = [vector(graph, name, array(angle[0, :, 0])) for name, angle in zip(TABLES, angles, strict=True)]
    alone = graph.add("Unsqueeze", part, graph.ints(0))
    turned = graph.add("RotaryEmbedding", alone, "positions", *tables, contrib=True, num_heads=count)
    return graph.add("Squeeze", turned, graph.ints(0))


def stacked(parts: Sequence[Matrix]) -> Matrix:
    """Matrices that read the same input as one, their outputs one after another. They must be of one format, and round their
    input alike."""
    first = parts[0]
    alike = [part.kind == first.kind and part.arrays.get(INPUT) == first.arrays.get(INPUT) for part in parts]
    if not all(alike):
        raise UserError("runner onnxruntime: matrices that read one input are of several formats; use the runner torch")
    names = [name for name in first.arrays if name != INPUT]
    arrays: dict[str, Any] = {name: np.concatenate([part.arrays[name] for part in parts]) for name in names}
    arrays |= {INPUT: first.arrays[INPUT]} if INPUT in first.arrays else {}
    biases = [part.bias for part in parts]
    joined = None if biases[0] is None else np.concatenate([bias for bias in biases if bias is not None])
    return Matrix(parts[0].kind, arrays, joined)
