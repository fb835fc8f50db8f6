"""Layout of a model folder's weight files: which tensors, in which shards, and how many bytes; no torch.

The same functions decide what export writes and what a plan predicts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from math import prod

from burnish.config import ModelConfig
from burnish.tensors import file_shapes, head_names

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
ITEM = {"float32": ("F32", 4), "float16": ("F16", 2), "bfloat16": ("BF16", 2)}  # name in a file, bytes an element


def metadata(config: ModelConfig, write_tied: bool = False) -> dict[str, str]:
    """What every weight file says of itself: the framework, and which tensor is tied to which."""
    embedding, head = head_names(config)
    tie = f"{head}={embedding}" if config.tied else "none"
    return {"format": "pt", "tied": tie} | ({"tied_written": "true"} if config.tied and write_tied else {})


def shards(sizes: Mapping[str, int], limit: int) -> list[list[str]]:
    """Tensor names in order, cut into files of at most `limit` bytes; a larger tensor has a file of its own."""
    parts: list[list[str]] = [[]]
    filled = 0
    for name, size in sizes.items():
        if parts[-1] and filled + size > limit:
            parts.append([])
            filled = 0
        parts[-1].append(name)
        filled += size
    return parts


def file_name(number: int, count: int) -> str:
    """Name of weight file `number` (from 1) of `count`."""
    return SINGLE if count == 1 else f"model-{number:05d}-of-{count:05d}.safetensors"


def weight_bytes(config: ModelConfig, dtype: str, write_tied: bool, limit: int) -> int:
    """Bytes of all weight files of a model folder, headers included."""
    shapes = file_shapes(config, write_tied)
    sizes = {name: prod(shape) * ITEM[dtype][1] for name, shape in shapes.items()}
    about = metadata(config, write_tied)
    return sum(_file_bytes({n: shapes[n] for n in names}, dtype, about) for names in shards(sizes, limit))


def _file_bytes(shapes: Mapping[str, tuple[int, ...]], dtype: str, about: Mapping[str, str]) -> int:
    """One safetensors file: 8 bytes, a JSON header padded to a multiple of 8, the data (format's README, "Format")."""
    code, width = ITEM[dtype]
    header: dict[str, object] = {"__metadata__": dict(about)}
    at = 0
    for name in _file_order(shapes):
        end = at + prod(shapes[name]) * width
        header[name] = {"dtype": code, "shape": list(shapes[name]), "data_offsets": [at, end]}
        at = end
    length = len(json.dumps(header, separators=(",", ":")))
    return 8 + -(-length // 8) * 8 + at


def _file_order(names: Iterable[str]) -> list[str]:
    """The order in which safetensors lays out tensors of one type."""
    return sorted(names)
