"""Q/DQ: an ONNX network whose convolutions read and hold 8-bit integers, written as QuantizeLinear and DequantizeLinear.

A convolution's weight is int8 with a scale for each output channel, its input and output (behind a ReLU or ReLU6) 8-bit with
one scale, its bias int32 in the product of both scales. Transposed convolutions hold int8 weights alone: no runtime for processors
multiplies integers there, and rounding their inputs would cost without gain.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from burnish.vision.onnx_fold import attribute, put_weights
from burnish.vision.onnx_ranges import Range

LEVELS, REDUCED = 127, 63  # largest integer of a weight; where sums of two products must fit 16 bits
BIAS = 2**31 - 1
TINY = 1e-30  # a scale below this, times another, is no float32 any more


@dataclass(frozen=True)
class Form:
    """`symmetric`: zero is integer 0 everywhere, as TensorRT wants; `reduce_range`: weights in 7 bits."""

    symmetric: bool = False
    reduce_range: bool = False


@dataclass(frozen=True)
class Scale:
    """value = scale * (integer - zero)."""

    scale: np.float32
    zero: NDArray[Any]

    @classmethod
    def of(cls, held: Range, symmetric: bool) -> Scale:
        """Of a range that holds 0; 1 where it holds nothing else."""
        if symmetric:
            most = max(-held.low, held.high)
            return cls(np.float32(max(most / LEVELS, TINY) if most else 1.0), np.array(0, np.int8))
        scale = np.float32(max((held.high - held.low) / 255, TINY) if held.high > held.low else 1.0)
        return cls(scale, np.array(np.clip(np.round(-held.low / scale), 0, 255), np.uint8))


def layers(model: Any) -> tuple[str, ...]:
    """Names of the convolutions, those with weights of their own: the outputs they make."""
    return tuple(node.output[0] for node in _convolutions(model.graph))


def _convolutions(graph: Any) -> Iterator[Any]:
    held = {one.name for one in graph.initializer}
    for node in graph.node:
        known = node.op_type == "Conv" or (node.op_type == "ConvTranspose" and attribute(node, "group", 1) == 1)
        if known and all(name in held for name in node.input[1:]):
            yield node


def values(model: Any, kept: frozenset[str] = frozenset()) -> dict[str, str]:
    """The values that become integers -> the value whose range they take; `kept`: convolutions that stay in float."""
    graph = model.graph
    outputs = {one.name for one in graph.output}
    readers: dict[str, list[Any]] = {}
    for node in graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    found: dict[str, str] = {}
    for node in _convolutions(graph):
        if node.op_type != "Conv" or node.output[0] in kept:
            continue
        after = readers.get(node.output[0], [])
        made = after[0].output[0] if len(after) == 1 and after[0].op_type in ("Relu", "Clip") else node.output[0]
        found |= {name: name for name in (node.input[0], made) if name not in outputs}
    for node in reversed(graph.node):  # what moves integers about reads integers
        if node.output and node.output[0] in found and node.op_type in ("MaxPool", "Concat"):
            found |= {name: found.get(name, name) for name in node.input}
            if node.op_type == "MaxPool":
                found[node.output[0]] = node.input[0]
    return found


def written(model: Any, ranges: Mapping[str, Range], form: Form, kept: frozenset[str] = frozenset()) -> Any:
    """The model in 8 bits; the convolutions named in `kept` as they were. `ranges` of all of `values`."""
    import onnx
    from onnx import numpy_helper

    made = onnx.ModelProto()
    made.CopyFrom(model)
    graph = made.graph
    weights = {one.name: numpy_helper.to_array(one) for one in graph.initializer}
    scales = {name: Scale.of(ranges[source], form.symmetric) for name, source in values(model, kept).items()}
    ahead: dict[str, list[Any]] = {}  # output of a node -> the nodes that go right before it
    for node in list(_convolutions(graph)):
        if node.output[0] not in kept:
            ahead[node.output[0]] = _integers(node, weights, scales.get(node.input[0]), form)
    behind = {name: _rounded(name, scale, weights) for name, scale in scales.items()}
    for node in graph.node:
        for place, name in enumerate(node.input):
            if name in behind:
                node.input[place] = f"{name}.dq"
    nodes = [one for given in graph.input for one in behind.get(given.name, [])]
    for node in list(graph.node):
        own = [one for name in node.output for one in behind.get(name, [])]
        nodes += [*ahead.get(node.output[0], []), node, *own]
    del graph.node[:]
    graph.node.extend(nodes)
    put_weights(graph, weights)
    onnx.checker.check_model(made)
    return made


def _rounded(name: str, scale: Scale, weights: dict[str, Any]) -> list[Any]:
    """A value to integers and back."""
    from onnx import helper

    own = (f"{name}.scale", f"{name}.zero")
    weights[own[0]], weights[own[1]] = np.array(scale.scale, np.float32), scale.zero
    return [
        helper.make_node("QuantizeLinear", [name, *own], [f"{name}.q"], f"{name}.q"),
        helper.make_node("DequantizeLinear", [f"{name}.q", *own], [f"{name}.dq"], f"{name}.dq"),
    ]


def _integers(node: Any, weights: dict[str, Any], read: Scale | None, form: Form) -> list[Any]:
    """Make a convolution's weight int8 and, where it reads integers, its bias int32; the nodes that turn them back."""
    weight, name = weights[node.input[1]], f"{node.output[0]}.weight"
    axis = 1 if node.op_type == "ConvTranspose" else 0
    bias = weights[node.input[2]] if len(node.input) > 2 else None
    scale = weight_scales(weight, axis, bias if read else None, float(read.scale) if read else 1.0, form)
    shape = [1] * weight.ndim
    shape[axis] = -1
    most = REDUCED if form.reduce_range else LEVELS
    integers = np.clip(np.round(weight / scale.reshape(shape)), -most, most).astype(np.int8)
    nodes = _turned_back(name, integers, scale, axis, weights)
    node.input[1] = f"{name}.dq"
    if read is not None and bias is not None:
        both = (scale.astype(np.float64) * float(read.scale)).astype(np.float32)
        whole = np.clip(np.round(bias.astype(np.float64) / both), -BIAS, BIAS).astype(np.int32)
        nodes += _turned_back(f"{node.output[0]}.bias", whole, both, 0, weights)
        node.input[2] = f"{node.output[0]}.bias.dq"
    return nodes


def weight_scales(
    weight: NDArray[Any], axis: int, bias: NDArray[Any] | None, read: float, form: Form
) -> NDArray[np.float32]:
    """The scale of each output channel, from its largest weight.

    Never so small that the bias, counted in it and the scale of what is `read`, leaves 32 bits: of a channel whose weights are
    all but 0 the bias is the whole result.
    """
    rest = tuple(one for one in range(weight.ndim) if one != axis)
    scale = np.abs(weight).max(rest).astype(np.float64) / (REDUCED if form.reduce_range else LEVELS)
    if bias is not None:
        scale = np.maximum(scale, np.abs(bias.astype(np.float64)) / (read * BIAS / 2))
    return np.maximum(scale, TINY / min(read, 1.0)).astype(np.float32)


def _turned_back(name: str, integers: Any, scale: Any, axis: int, weights: dict[str, Any]) -> list[Any]:
    from onnx import helper

    own = [name, f"{name}.scale", f"{name}.zero"]
    for key, array in zip(own, (integers, scale, np.zeros(scale.shape, integers.dtype)), strict=True):
        weights[key] = array
    return [helper.make_node("DequantizeLinear", own, [f"{name}.dq"], f"{name}.dq", axis=axis)]
