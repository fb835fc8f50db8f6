"""Weight formats of compressed-tensors: which tensors a matrix of few bits becomes in a file, and their bytes; no torch.

Layout: compressed-tensors 0.20, `pack-quantized` (integers of 4 bits, eight a word) and `int-quantized` (int8).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from math import prod
from typing import Any

from burnish.config import ModelConfig
from burnish.errors import UserError
from burnish.layout import ITEM, metadata, shards
from burnish.tables.families import Link
from burnish.tensors import Shape, file_shapes, head_names, links

WORD = 32  # bits of a word that integers are packed into
# Name of a type -> its name in a file, bytes an element. The order of both is that in which a file lays types out.
TYPES = {"int64": ("I64", 8), "float32": ("F32", 4), "int32": ("I32", 4)} | {
    "bfloat16": ITEM["bfloat16"],
    "float16": ITEM["float16"],
    "int8": ("I8", 1),
}
# Modules of a layer that hold matrices, by their endings; routers, norms, embedding and head stay as they are.
MATRICES = (
    *(f"attention.{name}" for name in ("q", "k", "v", "o")),
    *(f"mlp.{name}" for name in ("gate", "up", "down")),
)
Stored = dict[str, tuple[str, Shape]]  # tensor of a file -> (type, shape)


@dataclass(frozen=True)
class IntWeights:
    """Integers of `bits` with one scale, and unless `symmetric` one zero point, for each `group` inputs of an output.

    `group` -1: one for all of an output's inputs. `dtype`: that of scales, and of whatever else a file holds.
    `inputs`: how activations are rounded: "" not at all, "token" for each as it comes, "tensor" by a stored scale.
    """

    bits: int = 4
    group: int = 128
    symmetric: bool = True
    dtype: str = "float16"
    inputs: str = ""

    @property
    def packed(self) -> bool:
        """Whether several integers share a word."""
        return self.bits < 8

    @property
    def format(self) -> str:
        """What compressed-tensors calls it."""
        return "pack-quantized" if self.packed else "int-quantized"

    @property
    def label(self) -> str:
        """For tables: W4 g64."""
        return f"W{self.bits}{f'A{self.bits}' if self.inputs else ''}{f' g{self.group}' if self.group > 0 else ''}"

    def groups(self, inputs: int) -> int:
        """Groups of an output's inputs. Raises UserError where they do not divide."""
        if self.group < 0:
            return 1
        if inputs % self.group:
            raise UserError(f"group {self.group} does not divide {inputs} inputs; {legal_groups((inputs,))}")
        return inputs // self.group


def legal_groups(inputs: tuple[int, ...]) -> str:
    """Half a sentence: which usual groups divide all of these input sizes."""
    return f"these do: {', '.join(map(str, [g for g in (32, 64, 128) if not any(n % g for n in inputs)] + [-1]))}"


def fits(module: str, patterns: tuple[str, ...]) -> bool:
    """Whether a pattern fits a module's name, whole (`layers.0.mlp.down`) or behind the layer's number, or its last part."""
    parts = (module, module.split(".", 2)[-1], module.rsplit(".", 1)[-1])
    return any(fnmatchcase(part, pattern) for part in parts for pattern in patterns)


def words(count: int, bits: int) -> int:
    """Words that hold `count` integers."""
    return -(-count * bits // WORD)


def stored(scheme: IntWeights, name: str, shape: Shape) -> Stored:
    """The tensors of a file that hold the matrix `name` of `shape` [out, in]; `name` is the module's, without `.weight`."""
    out, inputs = shape
    groups = scheme.groups(inputs)
    found: Stored = {}
    if scheme.packed:
        found[f"{name}.weight_packed"] = "int32", (out, words(inputs, scheme.bits))
        found[f"{name}.weight_scale"] = scheme.dtype, (out, groups)
        if not scheme.symmetric:
            found[f"{name}.weight_zero_point"] = "int32", (words(out, scheme.bits), groups)
        found[f"{name}.weight_shape"] = "int64", (2,)
    else:
        found[f"{name}.weight"] = "int8", (out, inputs)
        found[f"{name}.weight_scale"] = scheme.dtype, (out, groups)
    if scheme.inputs == "tensor":
        found[f"{name}.input_scale"] = scheme.dtype, (1,)
    return found


def held_bytes(scheme: IntWeights, shape: Shape) -> int:
    """Bytes of a matrix in memory: those of its tensors in a file, but for the shape, which is no tensor there."""
    return sum(size_of(kind, own) for name, (kind, own) in stored(scheme, "", shape).items() if name != ".weight_shape")


def size_of(dtype: str, shape: Shape) -> int:
    """Bytes of one tensor."""
    return prod(shape) * TYPES[dtype][1]


def module_of(link: Link) -> str:
    """Our module whose matrix a link is about: `layers.0.attention.q`; "" where the link is of no such matrix."""
    module = link.ours[0].removesuffix(".weight")
    return module if link.ours[0].endswith(".weight") and module.split(".", 2)[-1] in MATRICES else ""


def compressed_links(config: ModelConfig, kept: frozenset[str] = frozenset()) -> Iterator[Link]:
    """The links whose matrices are compressed: all of `MATRICES` but the modules named in `kept`.

    Raises UserError for a family that stores several matrices as one, or turned: compressed-tensors has no name for these.
    """
    for link in links(config):
        if (module := module_of(link)) and module not in kept:
            if link.transposed or len(link.ours) > 1:
                raise UserError(
                    f"{config.family} keeps {link.theirs[0]} turned or joined, for which compressed-tensors has no name; "
                    "llama, mistral, qwen2, qwen3, mixtral and qwen3_moe have such files"
                )
            yield link


def file_tensors(config: ModelConfig, scheme: IntWeights, kept: frozenset[str] = frozenset()) -> Stored:
    """All tensors of a compressed model's files in their order; `kept` modules stay in `scheme.dtype`."""
    small = {name for link in compressed_links(config, kept) for name in link.theirs}
    found: Stored = {}
    for name, shape in file_shapes(config).items():
        found |= stored(scheme, name.removesuffix(".weight"), shape) if name in small else {name: (scheme.dtype, shape)}
    return found


def file_bytes(config: ModelConfig, scheme: IntWeights, limit: int, kept: frozenset[str] = frozenset()) -> int:
    """Bytes of all weight files of a compressed model folder, headers included."""
    tensors = file_tensors(config, scheme, kept)
    sizes = {name: size_of(*tensor) for name, tensor in tensors.items()}
    about = metadata(config)
    return sum(one_file({n: tensors[n] for n in names}, about) for names in shards(sizes, limit))


def one_file(tensors: Stored, about: Mapping[str, str]) -> int:
    """One safetensors file, which has its tensors by type and then by name."""
    order = list(TYPES)
    header: dict[str, object] = {"__metadata__": dict(about)}
    at = 0
    for name in sorted(tensors, key=lambda name: (order.index(tensors[name][0]), name)):
        dtype, shape = tensors[name]
        end = at + size_of(dtype, shape)
        header[name] = {"dtype": TYPES[dtype][0], "shape": list(shape), "data_offsets": [at, end]}
        at = end
    length = len(json.dumps(header, separators=(",", ":")))
    return 8 + -(-length // 8) * 8 + at


def ignored(config: ModelConfig, kept: frozenset[str] = frozenset()) -> tuple[str, ...]:
    """A file's modules that hold matrices and are not compressed: the head, routers, and those kept."""
    _, head = head_names(config)
    own = [
        name
        for link in links(config)
        if module_of(link) in kept or link.ours[0].endswith("router.weight")
        for name in link.theirs
    ]
    return tuple(name.removesuffix(".weight") for name in (head, *own) if name.endswith(".weight"))


def quantization_config(scheme: IntWeights, ignore: tuple[str, ...]) -> dict[str, Any]:
    """The `quantization_config` of config.json that says all this to other readers (compressed-tensors' own keys)."""
    integers = {"num_bits": scheme.bits, "type": "int"}
    weights = integers | {"symmetric": scheme.symmetric, "dynamic": False}
    weights |= {"strategy": "group", "group_size": scheme.group} if scheme.group > 0 else {"strategy": "channel"}
    inputs = None
    if scheme.inputs:
        inputs = integers | {"symmetric": True, "strategy": scheme.inputs, "dynamic": scheme.inputs == "token"}
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs, "output_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "format": scheme.format,
        "quantization_status": "compressed",
        "global_compression_ratio": None,
        "kv_cache_scheme": None,
        "ignore": list(ignore),
        "config_groups": {"group_0": group},
    }
