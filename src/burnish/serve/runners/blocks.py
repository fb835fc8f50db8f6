"""Matrices of 4 bits with a scale and a least value for each block of inputs, as products of onnxruntime's operators.

w = d (q - 8) + m with q in 0..15, so the product of an input is that of the integers, which onnxruntime has a fast operator
for, and that of the block's sum with m. This is the grid of llama.cpp's Q4_1: weights that came in that format are kept
exactly, since each of their blocks reaches both ends of it.

Shape letters: O outputs, I inputs, G blocks of a row.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from burnish.errors import UserError
from burnish.export.onnx_graph import FLOAT, Array, Graph
from burnish.export.onnx_linear import Form, linear
from burnish.export.onnx_matrix import Matrix
from burnish.export.onnx_parts import vector
from burnish.weight_format import IntWeights

BLOCK, LEVELS, MIDDLE = 32, 15, 8


@dataclass(frozen=True)
class Blocks:
    """A matrix as integers and scales, and what a block's sum is multiplied by: [O, G], none for a matrix of other kind."""

    integers: Matrix
    middle: Array | None = None


def blocks4(held: Matrix) -> Blocks:
    """A float matrix in blocks of 4 bits; one of integers as it is. Raises UserError for inputs that no block divides."""
    if held.kind is not None:
        return Blocks(held)
    out, width = held.shape
    if width % BLOCK:
        raise UserError(f"--weights q4: a matrix has {width} inputs, which blocks of {BLOCK} do not divide; use float")
    apart = held.arrays["weight"].reshape(out, -1, BLOCK)
    least, most = apart.min(-1), apart.max(-1)
    scale = (most - least) / np.float32(LEVELS)
    steps = np.rint((apart - least[..., None]) / np.where(scale > 0, scale, 1)[..., None])
    arrays = {"weight": np.clip(steps, 0, LEVELS).astype(np.uint8).reshape(out, width), "weight_scale": scale}
    return Blocks(Matrix(IntWeights(4, BLOCK, True, FLOAT), arrays, held.bias), least + MIDDLE * scale)


def product(graph: Graph, form: Form, name: str, held: Blocks, x: str) -> str:
    """x [T, I] times the transposed matrix, and its bias: [T, O]. Both products end in one sum, made in place."""
    made = linear(graph, form, name, held.integers, x)
    if held.middle is None:
        return made
    groups = held.middle.shape[1]
    apart = graph.once(("apart", x), "Reshape", x, graph.ints(-1, groups, BLOCK))
    sums = graph.once(("sums", x), "ReduceSum", apart, graph.ints(-1), keepdims=0)
    middle = vector(graph, f"{name}.middle", np.ascontiguousarray(held.middle.T, dtype=np.float32))
    return graph.add("Gemm", sums, middle, made)
