"""Layout of an ONNX file's weights: which initialisers, of which type and shape, and how many bytes; no torch.

Matrices keep their orientation, [out, in]. The same records say what export writes and what is predicted of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from burnish.config import ModelConfig
from burnish.encoders.config import EncoderConfig
from burnish.encoders.tensors import encoder_shapes
from burnish.tables.encoders import NONE
from burnish.tensors import tensor_shapes
from burnish.weight_format import IntWeights

Shape = tuple[int, ...]
BITS = {"float32": 32, "int64": 64, "int8": 8, "uint8": 8, "int4": 4, "uint4": 4}
PAGE = 4096  # weights beside a graph begin at multiples of it, so that they can be mapped
SMALL = 1024  # bytes up to which a weight stays in the graph: readers look into vectors for shapes
TABLES = ("cosines", "sines")  # of the angles of rotary positions


@dataclass(frozen=True)
class Stored:
    """One initialiser."""

    dtype: str
    shape: Shape

    @property
    def bytes(self) -> int:
        """Bytes of its elements; two of 4 bits share one."""
        return -(-prod(self.shape) * BITS[self.dtype] // 8)


Kind = IntWeights | None  # None: float32


def matrix(name: str, shape: Shape, kind: Kind, fused: bool) -> dict[str, Stored]:
    """The initialisers of one matrix `name`, [out, in]; scales are float32 whatever the kind says.

    Groups are blocks as onnxruntime's MatMulNBits has them (`fused`), where the zero point 8 or 128 is left out, or the turned
    matrix [in, out] by the standard DequantizeLinear, the one form that runtimes make products of blocks of. Rows of 8 bits
    are the same in both.
    """
    out, width = shape
    if kind is None:
        return {f"{name}.weight": Stored("float32", shape)}
    if kind.bits == 8 and kind.group < 0:
        found = {f"{name}.weight": Stored("int8", shape), f"{name}.weight_scale": Stored("float32", (out,))}
        if kind.inputs == "tensor":  # onnxruntime has integer products only where zero points are written out
            found[f"{name}.weight_zero_point"] = Stored("int8", (out,))
            found[f"{name}.input_scale"] = Stored("float32", ())
        return found
    blocks = kind.groups(width)
    size, half = width // blocks, kind.bits == 4
    scale = {f"{name}.weight_scale": Stored("float32", (out, blocks))}
    if fused:
        found = {f"{name}.weight": Stored("uint8", (out, blocks, size // 2 if half else size))} | scale
        zeros = Stored("uint8", (out, -(-blocks // 2)))
    else:
        type_ = f"{'' if kind.symmetric else 'u'}int{kind.bits}"
        found = {
            f"{name}.weight": Stored(type_, (width, out)),
            f"{name}.weight_scale": Stored("float32", (blocks, out)),
        }
        zeros = Stored(type_, (blocks, out))
    return found | ({} if kind.symmetric else {f"{name}.weight_zero_point": zeros})


def decoder_initialisers(config: ModelConfig, kinds: Mapping[str, Kind], fused: bool) -> dict[str, Stored]:
    """Those of a decoder's file. `kinds`: what each matrix is stored as, by our name; float32 where it says nothing.

    A tied head is the embedding's. Rotary positions add two tables, [positions, head size / 2].
    """
    shapes = {
        name: shape for name, shape in tensor_shapes(config).items() if not (config.tied and name == "head.weight")
    }
    angles = Stored("float32", (config.max_positions, config.head_dim // 2))
    tables = {} if config.traits.learned_positions else dict.fromkeys(TABLES, angles)
    return _of_shapes(shapes, kinds, fused) | tables


def encoder_initialisers(config: EncoderConfig, kinds: Mapping[str, Kind], fused: bool) -> dict[str, Stored]:
    """Those of an encoder's file; a pooler that no head reads is left out."""
    unread = ("pooler.",) if config.head == NONE else ()
    shapes = {name: shape for name, shape in encoder_shapes(config).items() if not name.startswith(unread)}
    return _of_shapes(shapes, kinds, fused)


def total_bytes(initialisers: Mapping[str, Stored]) -> int:
    """Bytes of all elements."""
    return sum(stored.bytes for stored in initialisers.values())


def beside_bytes(initialisers: Mapping[str, Stored]) -> int:
    """Bytes of the file of weights beside a large graph: by name, each from the next page on, small ones in the graph."""
    at = 0
    for _, stored in sorted(initialisers.items()):
        if stored.bytes > SMALL:
            at = -(-at // PAGE) * PAGE + stored.bytes
    return at


def _of_shapes(shapes: Mapping[str, Shape], kinds: Mapping[str, Kind], fused: bool) -> dict[str, Stored]:
    found: dict[str, Stored] = {}
    for name, shape in shapes.items():
        base, _, last = name.rpartition(".")
        if last == "weight" and len(shape) == 2:
            found |= matrix(base, shape, kinds.get(base), fused)
        else:
            found[name] = Stored("float32", shape)
    return found
