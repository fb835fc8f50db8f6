"""Graphs of a decoder cut at its attentions, of onnxruntime's fastest operators, matrices in whatever format the model has them.

A graph closes one layer and opens the next: output product, norm, feed-forward part, norm, and the products of queries, keys
and values, which are one, as are those of gate and up. Shape letters: T packed tokens, R rows whose scores are asked for.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from burnish.config import ModelConfig
from burnish.errors import UserError
from burnish.export.onnx_graph import FLOAT, INT64, Graph
from burnish.export.onnx_linear import Form, linear
from burnish.export.onnx_matrix import Matrix, matrix_of
from burnish.export.onnx_parts import activation, add_norm, gated_silu, looked_up, norm
from burnish.models.decoder import Block, Decoder
from burnish.models.rotary import rotary_angles
from burnish.onnx_layout import TABLES
from burnish.serve.runners.blocks import Blocks, blocks4, product

Weights = Literal["float", "q4"]
Hold = Callable[[Matrix], Blocks]
HOLD: dict[str, Hold] = {"float": Blocks, "q4": blocks4}
INPUT = "input_scale"  # of a matrix whose inputs are rounded by one scale
OPSET = 23


class Parts(NamedTuple):
    """A decoder, and how its graphs are written: `hold` is what a layer's matrix is held as; tables of the vocabulary's vectors
    and of its scores, one and the same where they are tied."""

    model: Decoder
    config: ModelConfig
    form: Form
    hold: Hold
    embed: Matrix
    head: Matrix

    @classmethod
    def of(cls, model: Decoder, config: ModelConfig, words: Matrix | None, weights: Weights, accuracy: int) -> Parts:
        head = words or matrix_of("head", model.head)
        embed = head if config.tied else matrix_of("embed", model.embed)
        return cls(model, config, Form(fused=True, accuracy=accuracy, flat=True), HOLD[weights], embed, head)


def graphs_of(parts: Parts) -> list[Graph]:
    """The graph before the first attention, those between two, and the one after the last, which ends in scores."""
    model, config, form, hold, embed, _ = parts
    layers = [block for block in model.layers if isinstance(block, Block)]
    between = [_between(one, other, config, form, hold) for one, other in itertools.pairwise(layers)]
    return [_first(model, form, embed, hold), *between, last_graph(parts)]


def embedded(graph: Graph, form: Form, model: Decoder, table: Matrix, positions: str, tied: bool = False) -> str:
    """Token ids, an input, to hidden states [T, H]; `positions` [.., T] are added where the family learns them.

    `tied`: the graph has the same table for its scores too.
    """
    graph.input("ids", INT64, ("tokens",))
    x = looked_up(graph, form, "head" if tied else "embed", table, "ids")
    if model.positions is None:
        return x
    flat = graph.add("Reshape", positions, graph.ints(-1))
    return graph.add("Add", x, looked_up(graph, form, "learned", matrix_of("positions", model.positions), flat))


def _first(model: Decoder, form: Form, embed: Matrix, hold: Hold) -> Graph:
    """Token ids and positions to the first layer's hidden states, queries, keys and values."""
    graph = Graph("first", OPSET)
    x = embedded(graph, form, model, embed, "positions")
    block = model.layers[0]
    assert isinstance(block, Block)
    normed = norm(graph, form, "norm", block.attention_norm, x)
    return _opened(graph, form, hold, block, model.shape, (x, normed))


def _between(block: Block, after: Block, config: ModelConfig, form: Form, hold: Hold) -> Graph:
    """What attention gave of one layer to the hidden states, queries, keys and values of the next."""
    graph = Graph("between", OPSET)
    x, more = closed(graph, form, hold, block, *_given(graph, config))
    normed, x = add_norm(graph, form, "norm", after.attention_norm, x, more)
    return _opened(graph, form, hold, after, config, (x, normed))


def last_graph(parts: Parts) -> Graph:
    """What attention gave of the last layer to scores."""
    model, _, form, hold, _, head = parts
    graph = Graph("last", OPSET)
    block = model.layers[-1]
    assert isinstance(block, Block)
    x, more = closed(graph, form, hold, block, *_given(graph, model.shape))
    normed, _ = add_norm(graph, form, "norm", model.norm, x, more)
    graph.output(linear(graph, form, "head", head, normed), "scores", FLOAT, ("rows", model.shape.vocab))
    return graph


def _given(graph: Graph, config: Any) -> tuple[str, str]:
    """Hidden states before an attention, and what it gave, as inputs."""
    hidden = graph.input("hidden", FLOAT, ("tokens", config.hidden))
    return hidden, graph.input("attended", FLOAT, ("tokens", config.heads * config.head_dim))


def closed(graph: Graph, form: Form, hold: Hold, block: Block, hidden: str, attended: str) -> tuple[str, str]:
    """Output product and feed-forward part of a layer: the sum before the latter, and what it adds."""
    own = _names(graph)
    o = product(graph, form, own("o"), hold(matrix_of("o", block.attention.o)), attended)
    normed, x = add_norm(graph, form, own("mlp_norm"), block.mlp_norm, hidden, o)
    mlp: Any = block.mlp
    if hasattr(mlp, "gate"):
        both = hold(stacked([matrix_of("gate", mlp.gate), matrix_of("up", mlp.up)]))
        parts = graph.add_many(
            "Split", product(graph, form, own("gate_up"), both, normed), outputs=2, axis=-1, num_outputs=2
        )
        inner = gated_silu(graph, form, *parts)
    else:
        inner = activation(graph, "gelu_tanh", product(graph, form, own("up"), hold(matrix_of("up", mlp.up)), normed))
    return x, product(graph, form, own("down"), hold(matrix_of("down", mlp.down)), inner)


def joined(graph: Graph, form: Form, hold: Hold, block: Block, normed: str) -> str:
    """Queries, keys and values of a layer side by side, [T, (N + 2 K) * D], as one product."""
    attention, name = block.attention, _names(graph)("qkv")
    modules: tuple[nn.Module, ...] = (attention.q, attention.k, attention.v)
    return product(graph, form, name, hold(stacked([matrix_of("qkv", module) for module in modules])), normed)


def opened(graph: Graph, form: Form, block: Block, config: Any, whole: str) -> list[str]:
    """Queries, keys and values apart, [T, heads * D], normed as the layer's family does it."""
    attention, size, own = block.attention, config.head_dim, _names(graph)
    counts = (config.heads, config.kv_heads, config.kv_heads)
    parts = graph.add_many("Split", whole, graph.ints(*(count * size for count in counts)), outputs=3, axis=-1)
    for k, (name, module) in enumerate((("q_norm", attention.q_norm), ("k_norm", attention.k_norm))):
        if module is not None:
            apart = graph.add("Reshape", parts[k], graph.ints(-1, counts[k], size))
            normed = norm(graph, form, own(name), module, apart)
            parts[k] = graph.add("Reshape", normed, graph.ints(-1, counts[k] * size))
    return parts


def _opened(graph: Graph, form: Form, hold: Hold, block: Block, config: Any, given: tuple[str, str]) -> Graph:
    """What a layer's attention needs, as outputs: hidden states, and queries, keys and values turned to their positions."""
    x, normed = given
    graph.input("positions", INT64, (1, "tokens"))
    graph.output(x, "hidden_out", FLOAT, ("tokens", config.hidden))
    parts = opened(graph, form, block, config, joined(graph, form, hold, block, normed))
    tables = [] if config.traits.learned_positions else turns(graph, config)
    for name, part, count in zip("qkv", parts, (config.heads, config.kv_heads, config.kv_heads), strict=True):
        if name != "v" and tables:
            part = _turned(graph, tables, part, count)
        graph.output(part, name, FLOAT, ("tokens", count * config.head_dim))
    return graph


def _names(graph: Graph) -> Callable[[str], str]:
    """Names of weights, with the graph's scope before them."""
    return lambda part: f"{graph.scope}.{part}" if graph.scope else part


def _turned(graph: Graph, tables: Sequence[str], part: str, count: int) -> str:
    """Rotary positions of [T, heads * D]."""
    alone = graph.add("Unsqueeze", part, graph.ints(0))
    turned = graph.add("RotaryEmbedding", alone, "positions", *tables, contrib=True, num_heads=count)
    return graph.add("Squeeze", turned, graph.ints(0))


def turns(graph: Graph, config: ModelConfig) -> list[str]:
    """Cosine and sine of every position, [positions, D / 2] each, as inputs: all graphs of a decoder read the same ones."""
    return [graph.input(name, FLOAT, (config.max_positions, config.head_dim // 2)) for name in TABLES]


def turning(config: ModelConfig) -> dict[str, Tensor]:
    """What these inputs are; none where positions are learned."""
    if config.traits.learned_positions:
        return {}
    every = torch.arange(config.max_positions)[None]
    angles = rotary_angles(every, config.head_dim, config.rope_theta, torch.float32, config.rope_scaling)
    return {name: angle[0, :, 0].contiguous() for name, angle in zip(TABLES, angles, strict=True)}


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
