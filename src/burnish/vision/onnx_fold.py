"""Fold: the batch norms of an ONNX file into the convolutions before them, so that integers take both at once.

gamma (W x + b - mean) / sqrt(var + eps) + beta is a convolution with W scaled by output channel and another bias (Jacob et al.
2018, arXiv 1712.05877, section 3.2).
"""

from __future__ import annotations

from typing import Any

import numpy as np

CONVOLUTIONS = ("Conv", "ConvTranspose")


def folded(model: Any) -> Any:
    """A copy of an ONNX model whose norms right behind a convolution, and behind nothing else, are part of it."""
    import onnx
    from onnx import numpy_helper

    made = onnx.ModelProto()
    made.CopyFrom(model)
    graph = made.graph
    _own_names(graph)
    weights = {one.name: numpy_helper.to_array(one) for one in graph.initializer}
    makers: dict[str, Any] = {node.output[0]: node for node in graph.node}
    uses = counted_uses(graph)
    for norm in [node for node in graph.node if node.op_type == "BatchNormalization"]:
        before: Any = makers.get(norm.input[0])
        inside = before is not None and before.op_type in CONVOLUTIONS and uses[norm.input[0]] == 1
        if not inside or uses[before.input[1]] != 1 or any(name not in weights for name in norm.input[1:]):
            continue
        if before.op_type == "ConvTranspose" and attribute(before, "group", 1) != 1:
            continue
        gamma, beta, mean, variance = (weights[name].astype(np.float64) for name in norm.input[1:5])
        by = gamma / np.sqrt(variance + attribute(norm, "epsilon", 1e-5))
        weight = weights[before.input[1]]
        shape = [1] * weight.ndim
        shape[1 if before.op_type == "ConvTranspose" else 0] = -1
        bias = weights[before.input[2]] if len(before.input) > 2 else 0.0
        name = f"{before.input[1]}.folded_bias"
        weights[before.input[1]] = (weight * by.reshape(shape)).astype(np.float32)
        weights[name] = ((bias - mean) * by + beta).astype(np.float32)
        del before.input[2:]
        before.input.append(name)
        before.output[0] = norm.output[0]
        graph.node.remove(norm)
    put_weights(graph, weights)
    return made


def _own_names(graph: Any) -> None:
    """Weights that go by a second name through Identity are read by their own."""
    held = {one.name for one in graph.initializer}
    names: dict[str, str] = {}
    for node in [node for node in graph.node if node.op_type == "Identity"]:
        if names.get(node.input[0], node.input[0]) in held:
            names[node.output[0]] = names.get(node.input[0], node.input[0])
            graph.node.remove(node)
    for node in graph.node:
        for place, name in enumerate(node.input):
            node.input[place] = names.get(name, name)


def counted_uses(graph: Any) -> dict[str, int]:
    """Value -> how often it is read, the file's outputs among the readers."""
    uses: dict[str, int] = {one.name: 1 for one in graph.output}
    for node in graph.node:
        for name in node.input:
            uses[name] = uses.get(name, 0) + 1
    return uses


def attribute(node: Any, name: str, default: Any) -> Any:
    """An attribute of a node."""
    from onnx import helper

    return next((helper.get_attribute_value(one) for one in node.attribute if one.name == name), default)


def put_weights(graph: Any, weights: dict[str, Any]) -> None:
    """Make these the weights of the graph, those left out that nothing reads."""
    from onnx import numpy_helper

    uses = counted_uses(graph)
    del graph.initializer[:]
    graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in weights.items() if name in uses)
