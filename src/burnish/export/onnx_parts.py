"""Parts that decoders and encoders share as ONNX operators: norms behind sums, activations, tables of vectors."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from burnish.compress.rtn import integers
from burnish.errors import UserError
from burnish.export.onnx_graph import FLOAT, Array, Graph
from burnish.export.onnx_linear import Form, keep
from burnish.export.onnx_matrix import Matrix, array, matrix_of_integers
from burnish.models.layers import LayerNorm, RMSNorm
from burnish.onnx_layout import Stored
from burnish.weight_format import IntWeights

WORD_GROUP = 32  # inputs that share a scale in a vocabulary's matrix of integers
ACTIVATIONS = {"gelu": "none", "gelu_tanh": "tanh"}  # -> the standard operator's form of it


def vector(graph: Graph, name: str, values: Array) -> str:
    """A float32 initialiser of the shape it has."""
    return graph.keep(name, Stored(FLOAT, values.shape), values)


def norm(graph: Graph, form: Form, name: str, module: nn.Module, x: str) -> str:
    """x [.., H] normed over its last axis."""
    weight = vector(graph, f"{name}.weight", array(_of(module).weight))
    epsilon = float(module.eps)  # type: ignore[arg-type]
    if isinstance(module, LayerNorm):
        bias = vector(graph, f"{name}.bias", array(module.bias))
        return graph.add("LayerNormalization", x, weight, bias, axis=-1, epsilon=epsilon)
    if form.fused:
        return graph.add("RMSNormalization", x, weight, axis=-1, epsilon=epsilon)
    square = graph.add("ReduceMean", graph.add("Mul", x, x), graph.ints(-1), keepdims=1)
    root = graph.add("Sqrt", graph.add("Add", square, graph.constant(epsilon, FLOAT)))
    return graph.add("Mul", graph.add("Div", x, root), weight)


def add_norm(graph: Graph, form: Form, name: str, module: nn.Module, x: str, more: str | None) -> tuple[str, str]:
    """The norm of x + more, and the sum itself; x alone where there is nothing more."""
    if more is None:
        return norm(graph, form, name, module, x), x
    if not form.fused:
        total = graph.add("Add", x, more)
        return norm(graph, form, name, module, total), total
    weights = [vector(graph, f"{name}.weight", array(_of(module).weight))]
    if isinstance(module, LayerNorm):
        weights.append(vector(graph, f"{name}.bias", array(module.bias)))
    op = "SkipLayerNormalization" if isinstance(module, LayerNorm) else "SkipSimplifiedLayerNormalization"
    total = f"{name}/sum"
    epsilon = float(module.eps)  # type: ignore[arg-type]
    outputs = [f"{name}/normed", "", "", total]
    normed = graph.add_many(op, x, more, *weights, outputs=outputs, contrib=True, epsilon=epsilon)[0]
    return normed, total


def activation(graph: Graph, name: str, x: str) -> str:
    """gelu, gelu_tanh or relu of x."""
    return graph.add("Relu", x) if name == "relu" else graph.add("Gelu", x, approximate=ACTIVATIONS[name])


def gated_silu(graph: Graph, form: Form, gate: str, up: str) -> str:
    """silu(gate) * up."""
    if form.fused:
        return graph.add("Mul", graph.add("QuickGelu", gate, contrib=True, alpha=1.0), up)
    return graph.add("Mul", graph.add("Mul", gate, graph.add("Sigmoid", gate)), up)


def looked_up(graph: Graph, form: Form, name: str, held: Matrix, ids: str) -> str:
    """The rows of a table [V, H] that `ids` name: [.., H]. Raises UserError for a kind that no such operator has."""
    if held.kind is None:
        return graph.add("Gather", keep(graph, form, name, held)["weight"], ids)
    if not form.fused or held.kind.group < 0:
        raise UserError(
            f"{name}: a table of {held.kind.label} is looked up by no standard operator; keep it in float32"
        )
    kept, (rows, width) = keep(graph, form, name, held), held.shape
    table = graph.add("Reshape", kept["weight"], graph.ints(rows, width * held.kind.bits // 8))
    zeros = [kept[ending] for ending in ("weight_zero_point",) if ending in kept]
    settings = {"bits": held.kind.bits, "block_size": held.kind.group, "gather_axis": 0, "quantize_axis": 1}
    return graph.add("GatherBlockQuantized", table, ids, kept["weight_scale"], *zeros, contrib=True, **settings)


def vocabulary(values: Array, stored: str, group: int = WORD_GROUP) -> Matrix | None:
    """A vocabulary's matrix [V, H] rounded to "int8" or "int4"; None for "float32". Raises UserError where groups do not fit."""
    if stored == "float32":
        return None
    if values.shape[1] % group:
        raise UserError(f"--head {stored}: {values.shape[1]} is no multiple of {group}; float32 works")
    if stored == "int8":
        return blocks8(values, group)
    scheme = IntWeights(4, group, False, FLOAT)
    return matrix_of_integers(integers(torch.from_numpy(values), scheme, where="head"), group)


def blocks8(values: Array, group: int) -> Matrix:
    """A float matrix [O, I] rounded to 8 bits with one scale for `group` inputs of a row: largest magnitude / 127."""
    apart = values.reshape(len(values), -1, group)
    scale = np.maximum(np.abs(apart).max(-1), np.finfo(np.float32).tiny) / np.float32(127)
    steps = np.clip(np.rint(apart / scale[..., None]), -127, 127).astype(np.int16) + 128
    arrays = {"weight": steps.astype(np.uint8).reshape(values.shape), "weight_scale": scale.astype(np.float32)}
    return Matrix(IntWeights(8, group, True, FLOAT), arrays, None)


def _of(module: nn.Module) -> RMSNorm | LayerNorm:
    if not isinstance(module, RMSNorm | LayerNorm):
        raise UserError(f"a norm of kind {type(module).__name__} has no form in ONNX")
    return module
