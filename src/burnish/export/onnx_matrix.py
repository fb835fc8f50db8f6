"""Matrices of a model as an ONNX file holds them: float, 4-bit blocks or 8-bit rows, read off the modules that compute them.

Shape letters: O outputs, I inputs, G inputs of one group.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from burnish.errors import UserError
from burnish.export.onnx_graph import FLOAT, Array
from burnish.onnx_layout import Kind
from burnish.ops.int4_linear import OFFSET, Integers
from burnish.weight_format import IntWeights


@dataclass(frozen=True)
class Matrix:
    """What a layer multiplies by: its kind, and its arrays by the endings of their names, unsigned where there are 4 bits.

    float: weight [O, I]. Groups: weight uint8 [O, I], integers plus 8 or 128; weight_scale [O, I/G]; weight_zero_point uint8
    [O, I/G] unless symmetric. Rows of 8 bits: weight int8 [O, I], weight_scale [O], input_scale [] where inputs have one.
    """

    kind: Kind
    arrays: Mapping[str, Array]
    bias: Array | None

    @property
    def shape(self) -> tuple[int, int]:
        out, width = self.arrays["weight"].shape
        return out, width


def matrix_of(name: str, module: nn.Module) -> Matrix:
    """Read a layer's matrix. Raises UserError for a module that is neither float nor of a format that ONNX has.

    Modules of integers say what they hold by `stored()`, under the endings of the compressed-tensors format.
    """
    bias = getattr(module, "bias", None)
    vector = None if bias is None else array(bias)
    given: Any = getattr(module, "stored", None)
    if given is not None:
        (stored,) = given()
        if "weight_packed" in stored:
            return _int4(name, stored, vector)
        scheme: Any = getattr(module, "scheme", None)
        return _int8(name, stored, vector, scheme.inputs if scheme is not None else "token")
    weight = getattr(module, "weight", None)
    if not isinstance(module, nn.Linear | nn.Embedding) or weight is None or list(module.children()):
        raise UserError(
            f"{name}: a {type(module).__name__} has no form in ONNX; merge adapters and export plain layers"
        )
    return Matrix(None, {"weight": array(weight)}, vector)


def array(tensor: Tensor) -> Array:
    """A tensor of a model on the CPU in float32, without a copy where it is so already."""
    return np.ascontiguousarray(tensor.detach().to("cpu", torch.float32).numpy())


def _int4(name: str, stored: Mapping[str, Tensor], bias: Array | None) -> Matrix:
    out, width = (int(n) for n in stored["weight_shape"])
    scale = array(stored["weight_scale"])
    group = width // scale.shape[1]
    words = stored["weight_packed"].cpu().numpy()
    arrays = {"weight": nibbles(words.view(np.uint8))[:, :width], "weight_scale": scale}
    if (zeros := stored.get("weight_zero_point")) is None:
        return Matrix(IntWeights(4, group, True, FLOAT), arrays, bias)
    down = np.ascontiguousarray(zeros.cpu().numpy().T)  # packed along the outputs
    arrays["weight_zero_point"] = np.ascontiguousarray(nibbles(down.view(np.uint8))[:, :out].T)
    return Matrix(IntWeights(4, group, False, FLOAT), arrays, bias)


def matrix_of_integers(own: Integers, group: int) -> Matrix:
    """Integers of 4 bits that no module holds."""
    given = {"weight": own.values} | ({} if own.zero is None else {"weight_zero_point": own.zero})
    arrays = {name: (values + OFFSET).to(torch.uint8).numpy() for name, values in given.items()}
    return Matrix(IntWeights(4, group, own.zero is None, FLOAT), arrays | {"weight_scale": array(own.scale)}, None)


def _int8(name: str, stored: Mapping[str, Tensor], bias: Array | None, inputs: str) -> Matrix:
    if stored["weight"].dtype != torch.int8:
        raise UserError(f"{name}: integers stored as {stored['weight'].dtype} have no form in ONNX; int8 has")
    scale = array(stored["weight_scale"]).reshape(-1)
    arrays: dict[str, Any] = {"weight": stored["weight"].cpu().numpy(), "weight_scale": scale}
    if len(scale) != len(arrays["weight"]):
        raise UserError(f"{name}: {len(scale)} scales for {len(arrays['weight'])} rows; ONNX export needs one a row")
    if (given := stored.get("input_scale")) is not None:
        arrays["input_scale"] = array(given).reshape(())
        arrays["weight_zero_point"] = np.zeros(len(scale), np.int8)
    return Matrix(IntWeights(8, -1, True, FLOAT, "tensor" if given is not None else inputs), arrays, bias)


def nibbles(packed: Array) -> Array:
    """uint8 [.., n] -> its halves [.., 2 n], the low one first."""
    return np.stack([packed & 15, packed >> 4], -1).reshape(*packed.shape[:-1], -1)


def packed(values: Array) -> Array:
    """uint8 of 0..15 [.., n] -> two a byte, the low one first, a row filled up with 0 where n is odd."""
    if values.shape[-1] % 2:
        values = np.concatenate([values, np.zeros_like(values[..., :1])], -1)
    return values[..., ::2] | values[..., 1::2] << 4
