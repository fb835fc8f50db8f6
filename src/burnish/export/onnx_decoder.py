"""A decoder as an ONNX graph: token ids and what earlier calls kept of keys and values, to scores and what is kept now.

Inputs: input_ids [B, S], attention_mask [B, P + S] (1 = a real token, cached or new), past_key_values.I.key and .value
[B, K, P, D] of every layer; P may be 0. Outputs: logits [B, S, V], present.I.key and .value [B, K, P + S, D]. B, S and P are
free. Positions follow from the mask.
"""

from __future__ import annotations

import torch
from torch import nn

from burnish.errors import UserError
from burnish.export.onnx_attention import (
    Heads,
    Positions,
    causal_positions,
    fused_attention,
    rotated,
    split_heads,
    standard_attention,
    with_past,
)
from burnish.export.onnx_graph import FLOAT, INT64, OPSET, Graph
from burnish.export.onnx_linear import Form, linear
from burnish.export.onnx_matrix import Matrix, array, matrix_of
from burnish.export.onnx_parts import activation, add_norm, gated_silu, looked_up, norm, vector
from burnish.models.decoder import Attention, Block, Decoder
from burnish.models.rotary import rotary_angles
from burnish.onnx_layout import TABLES

FUSED_OPSET = 23  # has RMSNormalization
PAST, PRESENT = ("past_key_values.{i}.key", "past_key_values.{i}.value"), ("present.{i}.key", "present.{i}.value")


def decoder_graph(model: Decoder, form: Form, words: Matrix | None = None) -> Graph:
    """The whole graph. `words`: what the vocabulary's matrix is stored as, in place of the model's own (the head's; a tied
    embedding's too). Raises UserError for experts, which have no form here, and for layers that are of no known kind.
    """
    shape = model.shape
    if shape.experts:
        raise UserError(f"a decoder of {shape.experts} experts a layer is not written as ONNX; GGUF or a folder can be")
    if form.fused and not shape.traits.learned_positions and shape.head_dim % 16:
        raise UserError(
            f"heads of {shape.head_dim} elements: onnxruntime rotates multiples of 16; use the portable form"
        )
    graph = Graph("decoder", FUSED_OPSET if form.fused else OPSET)
    cached: tuple[str | int, ...] = ("batch", shape.kv_heads, "past", shape.head_dim)
    graph.input("input_ids", INT64, ("batch", "sequence"))
    graph.input("attention_mask", INT64, ("batch", "total"))
    for i in range(shape.layers):
        for name in PAST:
            graph.input(name.format(i=i), FLOAT, cached)
    head = words or matrix_of("head", model.head)
    embed = head if model.head.weight is model.embed.weight or shape.tied else matrix_of("embed", model.embed)
    x, seen = _embedded(graph, form, model, embed)
    more: str | None = None
    for i, layer in enumerate(model.layers):
        window = shape.window if i >= shape.window_from else 0
        assert isinstance(layer, Block)
        x, more = _layer(
            graph, form, i, layer, Heads(shape.heads, shape.kv_heads, shape.head_dim, window), (x, more, seen)
        )
    graph.scope = ""
    normed, _ = add_norm(graph, form, "norm", model.norm, x, more)
    scores = linear(graph, form, "embed" if shape.tied else "head", head, normed)
    if not form.fused:
        sizes = graph.add("Concat", graph.ints(-1), seen.new, graph.ints(shape.vocab), axis=0)
        scores = graph.add("Reshape", scores, sizes)
    graph.output(scores, "logits", FLOAT, ("batch", "sequence", shape.vocab))
    for i in range(shape.layers):
        for name in PRESENT:
            held = ("batch", shape.kv_heads, "total", shape.head_dim)
            graph.output(name.format(i=i), name.format(i=i), FLOAT, held)
    return graph


def _embedded(graph: Graph, form: Form, model: Decoder, embed: Matrix) -> tuple[str, Positions]:
    """The vectors that go into the first layer: [B, S, H], or [T, H] in a portable graph."""
    shape = model.shape
    learned = model.positions is not None
    tables = None
    if not learned:
        every = torch.arange(shape.max_positions)[None]
        angles = rotary_angles(every, shape.head_dim, shape.rope_theta, torch.float32, shape.rope_scaling)
        cosines, sines = (vector(graph, name, array(part[0, :, 0])) for name, part in zip(TABLES, angles, strict=True))
        tables = cosines, sines
    windows = {shape.window if i >= shape.window_from else 0 for i in range(shape.layers)}
    if form.fused and not learned:
        seen = Positions("", "", "", "", {})
    else:
        seen = causal_positions(graph, set() if form.fused else windows, None if form.fused else tables)
    ids = "input_ids" if form.fused else graph.add("Reshape", "input_ids", graph.ints(-1))
    x = looked_up(graph, form, "embed", embed, ids)
    if model.positions is not None:
        at = seen.at if form.fused else graph.add("Reshape", seen.at, graph.ints(-1))
        x = graph.add("Add", x, looked_up(graph, form, "positions", matrix_of("positions", model.positions), at))
    return x, seen


def _layer(
    graph: Graph, form: Form, i: int, layer: Block, heads: Heads, given: tuple[str, str | None, Positions]
) -> tuple[str, str]:
    """One layer: what it was given with attention added, and what its feed-forward part adds to that."""
    x, more, seen = given
    graph.scope = scope = f"layers.{i}"
    normed, x = add_norm(graph, form, f"{scope}.attention_norm", layer.attention_norm, x, more)
    mixed = _attention(graph, form, i, layer.attention, heads, (normed, seen))
    normed, x = add_norm(graph, form, f"{scope}.mlp_norm", layer.mlp_norm, x, mixed)
    return x, _feed_forward(graph, form, f"{scope}.mlp", layer.mlp, normed)


def _attention(graph: Graph, form: Form, i: int, module: Attention, heads: Heads, given: tuple[str, Positions]) -> str:
    x, seen = given
    scope = f"{graph.scope}.attention"
    counts = {"q": heads.queries, "k": heads.keys, "v": heads.keys}
    norms = {"q": module.q_norm, "k": module.k_norm, "v": None}
    rotary = TABLES[0] in graph.kept
    parts = []
    for name, count in counts.items():
        made = linear(graph, form, f"{scope}.{name}", matrix_of(f"{scope}.{name}", getattr(module, name)), x)
        own = norms[name]
        if not form.fused:
            made = split_heads(graph, made, seen.new, count, heads.size)
        if own is not None and form.fused:
            made = graph.add("Reshape", made, graph.ints(0, 0, count, heads.size))
        if own is not None:
            made = norm(graph, form, f"{scope}.{name}_norm", own, made)
        if own is not None and form.fused:
            made = graph.add("Reshape", made, graph.ints(0, 0, count * heads.size))
        if not form.fused and seen.turns is not None and name != "v":
            made = rotated(graph, made, seen.turns, heads.size)
        parts.append(made)
    past, present = ([name.format(i=i) for name in names] for names in (PAST, PRESENT))
    query, key, value = parts
    kept = past[0], past[1]
    if form.fused:
        mixed = fused_attention(graph, heads, (query, key, value), kept, present, rotary)
    else:
        with_past(graph, (key, value), kept, present)
        mixed = standard_attention(graph, heads, query, (present[0], present[1]), seen)
    return linear(graph, form, f"{scope}.o", matrix_of(f"{scope}.o", module.o), mixed)


def _feed_forward(graph: Graph, form: Form, scope: str, module: nn.Module, x: str) -> str:
    def through(name: str, given: str) -> str:
        return linear(graph, form, f"{scope}.{name}", matrix_of(f"{scope}.{name}", getattr(module, name)), given)

    if hasattr(module, "gate"):
        return through("down", gated_silu(graph, form, through("gate", x), through("up", x)))
    return through("down", activation(graph, "gelu_tanh", through("up", x)))
