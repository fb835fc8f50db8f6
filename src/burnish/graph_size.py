"""Bytes of the weights that the engine's graphs hold: of those cut at attentions, and once more of the one of all layers.

Torch-free. What onnxruntime makes of them when it opens a graph takes their place, and up to half as much beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from burnish.config import ModelConfig
from burnish.onnx_layout import TABLES, Kind, Shape, Stored, matrix, total_bytes
from burnish.tensors import tensor_shapes
from burnish.weight_format import IntWeights

# Matrices that read one input are one: name of a part -> that of the whole.
JOINED = {"q": "qkv", "k": "qkv", "v": "qkv", "gate": "gate_up", "up": "gate_up"}
BLOCKS4 = IntWeights(4, 32, symmetric=True, dtype="float32")  # beside which each block has a least value
VOCABULARY: dict[str, Kind] = {
    "float32": None,
    "int8": IntWeights(8, 32, symmetric=True, dtype="float32"),
    "int4": IntWeights(4, 32, symmetric=False, dtype="float32"),
}
LARGEST = 2**28  # bytes of weights up to which they are held once more, in a graph of all layers
HEADS = 16  # what that graph's operator of attention wants sizes of heads to be a multiple of


class GraphBytes(NamedTuple):
    """Of the cut graphs, of the one of all layers, 0 where there is none, and of the rotary tables that all of them read."""

    cut: int
    whole: int
    tables: int


def graph_bytes(
    config: ModelConfig,
    kinds: Mapping[str, Kind],
    weights: str = "float",
    embed: str = "float32",
    head: str = "float32",
) -> GraphBytes:
    """`kinds`: what a checkpoint's matrices are stored as, by our names, float32 where it says nothing; `weights` q4 puts float
    ones in blocks of 4 bits. `head`: what the vocabulary's matrix of scores is held in; `embed`: that of its vectors, the
    table of scores itself where a decoder's are tied and the two are the same.
    """
    body = _layers(config, kinds, weights == "q4")
    words = (config.vocab, config.hidden)
    table, scores = (_bytes(words, VOCABULARY[name]) for name in (embed, head))
    angles = Stored("float32", (config.max_positions, config.head_dim // 2))
    turning = 0 if config.traits.learned_positions else len(TABLES) * angles.bytes
    shared = config.tied and embed == head
    cut, whole = body + table + scores, body + scores + (0 if shared else table)
    return GraphBytes(cut, whole if together(config, cut) else 0, turning)


def together(config: ModelConfig, cut: int) -> bool:
    """Whether there is a graph of all layers beside cut ones of so many bytes."""
    return cut <= LARGEST and config.head_dim % HEADS == 0


def _layers(config: ModelConfig, kinds: Mapping[str, Kind], blocks: bool) -> int:
    """Everything but the vocabulary's two tables."""
    found: dict[str, tuple[int, int, Kind]] = {}
    total = 0
    for name, shape in tensor_shapes(config).items():
        base, _, last = name.rpartition(".")
        if base in ("embed", "head"):
            continue
        if last != "weight" or len(shape) == 1 or base == "positions":
            total += Stored("float32", shape).bytes
            continue
        layer, _, part = base.rpartition(".")
        whole = f"{layer}.{JOINED.get(part, part)}"
        before = found.get(whole, (0, 0, None))[0]
        found[whole] = (before + shape[0], shape[1], kinds.get(base))
    for out, width, kind in found.values():
        plain = blocks and kind is None
        total += _bytes((out, width), BLOCKS4 if plain else kind)
        total += Stored("float32", (out, BLOCKS4.groups(width))).bytes if plain else 0
    return total


def _bytes(shape: Shape, kind: Kind) -> int:
    return total_bytes(matrix("", shape, kind, fused=True))
