"""The product of a layer's input with its matrix as ONNX operators: float, 4-bit blocks, 8-bit rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from burnish.errors import UserError
from burnish.export.onnx_graph import FLOAT, Array, Graph
from burnish.export.onnx_matrix import Matrix, packed
from burnish.onnx_layout import Stored, matrix

BLOCKS = (16, 32, 64, 128, 256)  # that MatMulNBits takes


@dataclass(frozen=True)
class Form:
    """How a graph is written. `fused`: with onnxruntime's own operators; else with standard ones alone.

    `accuracy`: of the products of 4-bit matrices with float inputs in a fused graph: 1 keeps them in float32, 4 rounds the
    inputs to 8 bits a block. `unsigned`: inputs of 8-bit products are 0..255 around 128 in place of -128..127 around 0.
    `flat`: hidden states are [T, H] in a fused graph too.
    """

    fused: bool = False
    accuracy: int = 1
    unsigned: bool = False
    flat: bool = False


PORTABLE = Form()


def linear(graph: Graph, form: Form, name: str, held: Matrix, x: str) -> str:
    """x [.., I] times the transposed matrix, and the bias if it has one: [.., O]; a portable graph's x is [T, I]."""
    kept = keep(graph, form, name, held)
    kind, bias = held.kind, _bias(graph, name, held)
    if kind is not None and kind.group < 0 and kind.bits == 8:
        made = _eight_bits(graph, form, held, x, kept)
        return graph.add("Add", made, bias) if bias else made
    if form.fused and kind is None:
        made = graph.add("FusedMatMul", x, kept["weight"], contrib=True, transB=1)
        return graph.add("Add", made, bias) if bias else made
    if form.fused and kind is not None:
        return _blocks(graph, form, held, x, kept, bias)
    if kind is not None:
        made = graph.add("MatMul", x, _standard_blocks(graph, held, kept))
        return graph.add("Add", made, bias) if bias else made
    return graph.add("Gemm", x, kept["weight"], *([bias] if bias else []), transB=1)


def keep(graph: Graph, form: Form, name: str, held: Matrix) -> dict[str, str]:
    """Put a matrix among the initialisers, laid out as the form has it; gives their names by ending."""
    kept = {}
    for full, stored in matrix(name, held.shape, held.kind, form.fused).items():
        ending = full.removeprefix(f"{name}.")
        kept[ending] = graph.keep(full, stored, _laid_out(held, ending, form.fused).reshape(-1))
    return kept


def _laid_out(held: Matrix, ending: str, fused: bool) -> Array:
    values, kind = held.arrays[ending], held.kind
    if kind is not None and kind.group > 0 and not fused:
        values = np.ascontiguousarray(values.T)
    if kind is None or kind.group < 0 or ending not in ("weight", "weight_zero_point"):
        return np.ascontiguousarray(values)
    if fused:
        return packed(values) if kind.bits == 4 else np.ascontiguousarray(values)
    if kind.symmetric:
        values = values ^ (1 << kind.bits - 1)  # counted from the middle -> two's complement
    return packed(values.reshape(-1)) if kind.bits == 4 else np.ascontiguousarray(values)


def _blocks(graph: Graph, form: Form, held: Matrix, x: str, kept: dict[str, str], bias: str) -> str:
    assert held.kind is not None
    out, width = held.shape
    if held.kind.group not in BLOCKS:
        blocks = ", ".join(map(str, BLOCKS))
        raise UserError(f"groups of {held.kind.group} inputs: onnxruntime has {blocks}; use the portable form")
    given = [x, kept["weight"], kept["weight_scale"], kept.get("weight_zero_point", ""), "", bias]
    while not given[-1]:
        given.pop()
    settings = {"bits": held.kind.bits, "block_size": held.kind.group, "accuracy_level": form.accuracy}
    return graph.add("MatMulNBits", *given, contrib=True, K=width, N=out, **settings)


def _standard_blocks(graph: Graph, held: Matrix, kept: dict[str, str]) -> str:
    """The float matrix [I, O] of blocks, by the operator that has them since opset 21."""
    assert held.kind is not None
    given = [kept[ending] for ending in ("weight", "weight_scale", "weight_zero_point") if ending in kept]
    return graph.add("DequantizeLinear", *given, axis=0, block_size=held.kind.group)


def _eight_bits(graph: Graph, form: Form, held: Matrix, x: str, kept: dict[str, str]) -> str:
    """As the matrix's inputs are rounded: not at all, by a stored scale, or by one of each position's own."""
    assert held.kind is not None
    if held.kind.inputs == "token":
        return _dynamic(graph, form, x, kept)
    zeros = [kept["weight_zero_point"]] if "weight_zero_point" in kept else []
    weight = graph.add("DequantizeLinear", kept["weight"], kept["weight_scale"], *zeros, axis=0)
    deep, (out, width) = form.fused and not form.flat, held.shape
    flat = graph.once(("flat", x), "Reshape", x, graph.ints(-1, width)) if deep else x
    rounded = _rounded(graph, form, held, flat, kept["input_scale"]) if held.kind.inputs else flat
    made = graph.add("Gemm", rounded, weight, transB=1)
    if not deep:
        return made
    sizes = graph.once(("rows", "sequence"), "Shape", "input_ids")
    return graph.add("Reshape", made, graph.once(("back", out), "Concat", sizes, graph.ints(out), axis=0))


def _rounded(graph: Graph, form: Form, held: Matrix, x: str, scale: str) -> str:
    """x through QuantizeLinear and DequantizeLinear; layers that read it with the same scale share both."""
    kind, zero = ("uint8", 128) if form.unsigned else ("int8", 0)
    value = float(held.arrays["input_scale"])
    point = graph.constant(zero, kind)
    integers = graph.once(("quantized", x, value), "QuantizeLinear", x, scale, point)
    return graph.once(("dequantized", x, value), "DequantizeLinear", integers, scale, point)


def _dynamic(graph: Graph, form: Form, x: str, kept: dict[str, str]) -> str:
    """Inputs rounded with a scale of each position's own, the product in integers, and both scales after it."""
    integers, scale = _rounded_by_position(graph, form, x)
    turned = graph.add("Transpose", kept["weight"], perm=[1, 0])
    middle = [graph.constant(128, "uint8")] if form.unsigned else []
    sums = graph.add("Cast", graph.add("MatMulInteger", integers, turned, *middle), to=1)
    return graph.add("Mul", graph.add("Mul", sums, scale), kept["weight_scale"])


def _rounded_by_position(graph: Graph, form: Form, x: str) -> tuple[str, str]:
    """Integers and scale of x, each position's largest magnitude being 127 steps; layers that read x share both."""

    def once(op: str, *inputs: str, **attributes: object) -> str:
        return graph.once((op, x, inputs), op, *inputs, **attributes)

    middle = 128.0 if form.unsigned else 0.0
    low, high = graph.constant(middle - 128, FLOAT), graph.constant(middle + 127, FLOAT)
    largest = once("ReduceMax", once("Abs", x), graph.ints(-1), keepdims=1)
    step = once("Div", largest, graph.constant(127.0, FLOAT))
    scale = once("Max", step, graph.constant(float(np.finfo(np.float32).tiny), FLOAT))
    steps = once("Round", once("Div", x, scale))
    moved = once("Add", steps, graph.constant(middle, FLOAT)) if form.unsigned else steps
    return once("Cast", once("Clip", moved, low, high), to=2 if form.unsigned else 3), scale


def _bias(graph: Graph, name: str, held: Matrix) -> str:
    """The name of a bias among the initialisers; "" where there is none."""
    if held.bias is None:
        return ""
    return graph.keep(f"{name}.bias", Stored(FLOAT, held.bias.shape), held.bias)
