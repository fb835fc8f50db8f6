"""An ONNX graph under construction: operators, constants and initialisers by name, in the order they are needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from burnish.onnx_layout import Stored

OPSET, CONTRIB = 21, "com.microsoft"
FLOAT, INT64, INT32, BOOL = "float32", "int64", "int32", "bool"
Array = NDArray[Any]
Axes = Sequence[str | int]


@dataclass(frozen=True)
class Kept:
    """A weight of the file: its element type and shape, and its bytes as they lie there."""

    stored: Stored
    data: Array


class Graph:
    """Nodes in execution order. `scope` begins the names of what is added, so that a reader of the file finds the layer.

    `opset`: of the standard operators; operators of `contrib` are onnxruntime's own and make the file one for it alone.
    """

    def __init__(self, name: str, opset: int = OPSET) -> None:
        self.name, self.opset, self.scope = name, opset, ""
        self.nodes: list[Any] = []
        self.inputs: list[Any] = []
        self.outputs: list[Any] = []
        self.kept: dict[str, Kept] = {}
        self.contrib = False
        self._constants: dict[tuple[Any, ...], str] = {}
        self._made: dict[tuple[Any, ...], str] = {}
        self._used: dict[str, int] = {}

    def add(self, op: str, *inputs: str, contrib: bool = False, **attributes: Any) -> str:
        """One operator with one output; gives the output's name. An input "" is left out."""
        return self.add_many(op, *inputs, outputs=1, contrib=contrib, **attributes)[0]

    def add_many(
        self, op: str, *inputs: str, outputs: int | Sequence[str], contrib: bool = False, **attributes: Any
    ) -> list[str]:
        """One operator with several outputs: how many, or their names ("": not needed)."""
        from onnx import helper

        label = self._label(op)
        counted = range(outputs) if isinstance(outputs, int) else ()
        names = [label if k == 0 else f"{label}.{k}" for k in counted] or list(outputs)  # type: ignore[arg-type]
        self.contrib |= contrib
        domain = CONTRIB if contrib else ""
        self.nodes.append(helper.make_node(op, list(inputs), names, label, domain=domain, **attributes))
        return names

    def once(self, key: tuple[Any, ...], op: str, *inputs: str, **attributes: Any) -> str:
        """`add`, or what an earlier call with the same key gave."""
        if key not in self._made:
            self._made[key] = self.add(op, *inputs, **attributes)
        return self._made[key]

    def constant(self, values: float | Sequence[int] | Sequence[float], kind: str) -> str:
        """A small constant; equal ones are one node."""
        from onnx import helper, numpy_helper

        array = np.asarray(values, dtype=kind)
        key = (kind, array.shape, array.tobytes())
        if key not in self._constants:
            name = self._constants[key] = f"constant.{len(self._constants)}"
            self.nodes.append(helper.make_node("Constant", [], [name], name, value=numpy_helper.from_array(array)))
        return self._constants[key]

    def ints(self, *values: int) -> str:
        """int64 vector."""
        return self.constant(values, INT64)

    def keep(self, name: str, stored: Stored, data: Array) -> str:
        """A weight, held once under its name. Raises RuntimeError where its bytes are not those of its type and shape."""
        if data.nbytes != stored.bytes:
            raise RuntimeError(f"{name}: {data.nbytes} bytes for {stored}, which has {stored.bytes}")
        self.kept.setdefault(name, Kept(stored, data))
        return name

    def input(self, name: str, kind: str, shape: Axes) -> str:
        """An input; a string in `shape` names a dimension that may be of any size."""
        self.inputs.append(_described(name, kind, shape))
        return name

    def output(self, value: str, name: str, kind: str, shape: Axes) -> None:
        """Give `value` out as `name`."""
        if value != name:
            from onnx import helper

            self.nodes.append(helper.make_node("Identity", [value], [name], name))
        self.outputs.append(_described(name, kind, shape))

    def _label(self, op: str) -> str:
        label = f"{self.scope}/{op}" if self.scope else op
        count = self._used[label] = self._used.get(label, 0) + 1
        return label if count == 1 else f"{label}_{count}"


def _described(name: str, kind: str, shape: Axes) -> Any:
    from onnx import TensorProto, helper

    return helper.make_tensor_value_info(name, TensorProto.DataType.Value(ONNX_TYPES[kind]), list(shape))


ONNX_TYPES = {
    "float32": "FLOAT",
    "int64": "INT64",
    "int32": "INT32",
    "bool": "BOOL",
    "int8": "INT8",
    "uint8": "UINT8",
    "int4": "INT4",
    "uint4": "UINT4",
}
