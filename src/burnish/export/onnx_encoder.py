"""An encoder as an ONNX graph: token ids to hidden states, and to a text's vector or to the scores of classes.

Inputs: input_ids, attention_mask (1 = a real token), token_type_ids, all [B, S] with B and S free. Outputs: last_hidden_state
[B, S, H] and, of an encoder without a head, sentence_embedding [B, H], pooled and scaled as the model's folder says; of one
with a head, logits: [B, C] of each text, or [B, S, C] of each token.
"""

from __future__ import annotations

import numpy as np
from torch import nn

from burnish.export.onnx_attention import (
    Heads,
    Positions,
    every_position,
    split_heads,
    standard_attention,
)
from burnish.export.onnx_graph import FLOAT, INT64, Graph
from burnish.export.onnx_linear import Form, linear
from burnish.export.onnx_matrix import matrix_of
from burnish.export.onnx_parts import activation, add_norm, looked_up, norm
from burnish.load.sentence_folder import CLS, Pooling
from burnish.models.encoder import Encoder, Layer

SHORTEST = 1e-12  # length that a vector is divided by at least, as torch's normalize has it


def encoder_graph(model: Encoder, form: Form, pooling: Pooling | None = None) -> Graph:
    """The whole graph. `pooling`: how a text's vector is made of an encoder without a head; None: no vector is given."""
    shape, graph = model.shape, Graph("encoder")
    for name in ("input_ids", "attention_mask", "token_type_ids"):
        graph.input(name, INT64, ("batch", "sequence"))
    seen = every_position(graph)
    parts = [("embed", "input_ids"), ("types", "token_type_ids")]
    places = graph.add("Add", seen.at, graph.constant(shape.offset, INT64)) if shape.offset else seen.at
    tables = {"embed": model.embed, "types": model.types, "positions": model.positions}
    found = []
    for name, ids in [*parts, ("positions", places)]:
        flat = graph.add("Reshape", ids, graph.ints(-1))
        found.append(looked_up(graph, form, name, matrix_of(name, tables[name]), flat))
    x = norm(
        graph, form, "embed_norm", model.embed_norm, graph.add("Add", graph.add("Add", found[0], found[1]), found[2])
    )
    heads = Heads(shape.heads, shape.heads, shape.head_dim)
    for i, layer in enumerate(model.layers):
        assert isinstance(layer, Layer)
        x = _layer(graph, form, f"layers.{i}", layer, heads, (x, seen))
    graph.scope = ""
    sizes = graph.add("Concat", graph.ints(-1), seen.new, graph.ints(shape.hidden), axis=0)
    hidden = graph.add("Reshape", x, sizes)
    graph.output(hidden, "last_hidden_state", FLOAT, ("batch", "sequence", shape.hidden))
    if model.head is not None:
        _classes(graph, form, model, x, hidden, seen)
    elif pooling is not None:
        graph.output(_pooled(graph, pooling, hidden), "sentence_embedding", FLOAT, ("batch", shape.hidden))
    return graph


def _layer(graph: Graph, form: Form, scope: str, layer: Layer, heads: Heads, given: tuple[str, Positions]) -> str:
    """Attention, then feed-forward, each added to its own input and normed after."""
    x, seen = given
    graph.scope = scope

    def through(name: str, module: nn.Module, value: str) -> str:
        return linear(graph, form, f"{scope}.{name}", matrix_of(f"{scope}.{name}", module), value)

    query, key, value = (through(f"attention.{n}", getattr(layer.attention, n), x) for n in ("q", "k", "v"))
    # onnxruntime's own operator for all of this was the slower one on a CPU
    query, key, value = (split_heads(graph, y, seen.new, heads.queries, heads.size) for y in (query, key, value))
    keys, values = (graph.add("Transpose", y, perm=[0, 2, 1, 3]) for y in (key, value))
    mixed = standard_attention(graph, heads, query, (keys, values), seen)
    mixed = through("attention.o", layer.attention.o, mixed)
    x, _ = add_norm(graph, form, f"{scope}.attention_norm", layer.attention_norm, x, mixed)
    wide = activation(graph, _named(layer), through("mlp.up", layer.mlp.up, x))
    more = through("mlp.down", layer.mlp.down, wide)
    return add_norm(graph, form, f"{scope}.mlp_norm", layer.mlp_norm, x, more)[0]


def _named(layer: Layer) -> str:
    from burnish.models.encoder import ACTIVATIONS

    return next(name for name, function in ACTIVATIONS.items() if function is layer.mlp.act)


def _classes(graph: Graph, form: Form, model: Encoder, x: str, hidden: str, seen: Positions) -> None:
    """Scores of the classes, of each text from its first real token or of each token."""
    shape = model.shape
    assert model.head is not None
    classes = len(shape.labels)
    if shape.head != "sequence":
        scores = linear(graph, form, "head", matrix_of("head", model.head), x)
        sizes = graph.add("Concat", graph.ints(-1), seen.new, graph.ints(classes), axis=0)
        graph.output(graph.add("Reshape", scores, sizes), "logits", FLOAT, ("batch", "sequence", classes))
        return
    assert model.pooler is not None
    first = graph.add("ArgMax", "attention_mask", axis=1, keepdims=1)
    state = graph.add("GatherND", hidden, first, batch_dims=1)
    pooled = graph.add("Tanh", linear(graph, form, "pooler", matrix_of("pooler", model.pooler), state))
    graph.output(
        linear(graph, form, "head", matrix_of("head", model.head), pooled), "logits", FLOAT, ("batch", classes)
    )


def _pooled(graph: Graph, pooling: Pooling, hidden: str) -> str:
    """[B, S, H] -> [B, H]: the first real token's state or the mean over the real ones, scaled to length 1 where asked."""
    if pooling.mode == CLS:
        vectors = graph.add("GatherND", hidden, graph.add("ArgMax", "attention_mask", axis=1, keepdims=1), batch_dims=1)
    else:
        real = graph.add("Unsqueeze", graph.add("Cast", "attention_mask", to=1), graph.ints(2))
        total = graph.add("ReduceSum", graph.add("Mul", hidden, real), graph.ints(1), keepdims=0)
        count = graph.add("ReduceSum", real, graph.ints(1), keepdims=0)
        vectors = graph.add("Div", total, graph.add("Max", count, graph.constant(1.0, FLOAT)))
    if not pooling.normalise:
        return vectors
    length = graph.add("ReduceL2", vectors, graph.ints(-1), keepdims=1)
    return graph.add("Div", vectors, graph.add("Max", length, graph.constant(float(np.float32(SHORTEST)), FLOAT)))
