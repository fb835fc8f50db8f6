"""Attention over cached and new positions as ONNX operators: spelled out in standard ones, or as onnxruntime's one for all.

Shape letters: B rows, S new positions, L positions in all, P = L - S cached ones, N query heads, K key/value heads,
G = N / K, D size of one head.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import numpy as np

from burnish.export.onnx_graph import FLOAT, INT64, Graph
from burnish.onnx_layout import TABLES

HIDDEN = float(np.finfo(np.float32).min)  # added to the score of a key that may not be seen
END = 2**62  # past the end of any axis


@dataclass(frozen=True)
class Heads:
    """Numbers of heads and their size; `window`: positions that a query sees, 0 for all."""

    queries: int
    keys: int
    size: int
    window: int = 0


@dataclass(frozen=True)
class Positions:
    """Names of what all layers share. `lengths` S, L [1] each; `at` [B, S] and `keys_at` [B, L]: number of a position in its
    row; `masks`: window -> what is added to scores, [B, 1, 1, S, L]; `turns`: cosine and sine [B, S, 1, D/2]."""

    new: str
    all: str
    at: str
    keys_at: str
    masks: dict[int, str]
    turns: tuple[str, str] | None = None


def causal_positions(graph: Graph, windows: set[int], tables: tuple[str, str] | None) -> Positions:
    """From input_ids [B, S] and attention_mask [B, L] (1 = real): positions counted over the real tokens of a row, and what
    a query may see: itself, and the real ones before it that are not a window or more behind."""
    new = graph.add("Shape", "input_ids", start=1, end=2)
    everything = graph.add("Shape", "attention_mask", start=1, end=2)
    past = graph.add("Sub", everything, new)
    counted = graph.add("CumSum", "attention_mask", graph.constant(1, INT64))
    keys_at = graph.add("Max", graph.add("Sub", counted, graph.constant(1, INT64)), graph.constant(0, INT64))
    at = graph.add("Slice", keys_at, past, graph.ints(END), graph.ints(1))
    zero, one = graph.constant(0, INT64), graph.constant(1, INT64)
    column = graph.add("Range", zero, graph.add("Squeeze", everything), one)
    own = graph.add("Unsqueeze", graph.add("Slice", column, past, graph.ints(END), graph.ints(0)), graph.ints(1))
    real = graph.add("Cast", graph.add("Unsqueeze", "attention_mask", graph.ints(1)), to=9)
    seen = graph.add("And", graph.add("LessOrEqual", column, own), real)
    itself = graph.add("Equal", column, own)
    masks = {}
    for window in sorted(windows):
        near = seen
        if window:
            apart = graph.add(
                "Sub", graph.add("Unsqueeze", at, graph.ints(2)), graph.add("Unsqueeze", keys_at, graph.ints(1))
            )
            near = graph.add("And", seen, graph.add("Less", apart, graph.constant(window, INT64)))
        # a pad sees itself: no row of the softmax is empty
        visible = graph.add("Unsqueeze", graph.add("Or", near, itself), graph.ints(1, 2))
        masks[window] = graph.add("Where", visible, graph.constant(0.0, FLOAT), graph.constant(HIDDEN, FLOAT))
    turns = None
    if tables is not None:
        cosine, sine = (graph.add("Unsqueeze", graph.add("Gather", table, at), graph.ints(2)) for table in tables)
        turns = cosine, sine
    return Positions(new, everything, at, keys_at, masks, turns)


def every_position(graph: Graph) -> Positions:
    """From input_ids and attention_mask [B, S]: positions counted over the real tokens of a row; all real ones are seen."""
    new = graph.once(("new",), "Shape", "input_ids", start=1, end=2)
    one = graph.constant(1, INT64)
    at = graph.add("Max", graph.add("Sub", graph.add("CumSum", "attention_mask", one), one), graph.constant(0, INT64))
    real = graph.add("Cast", graph.add("Unsqueeze", "attention_mask", graph.ints(1, 2, 3)), to=9)
    mask = graph.add("Where", real, graph.constant(0.0, FLOAT), graph.constant(HIDDEN, FLOAT))
    return Positions(new, new, at, at, {0: mask})


def split_heads(graph: Graph, x: str, new: str, heads: int, size: int) -> str:
    """[T, heads * D] -> [B, S, heads, D]."""
    shape = graph.once(("heads", heads), "Concat", graph.ints(-1), new, graph.ints(heads), graph.ints(size), axis=0)
    return graph.add("Reshape", x, shape)


def rotated(graph: Graph, x: str, turns: tuple[str, str], size: int) -> str:
    """Rotary embedding of [B, S, heads, D]: element i turns with element i + D/2."""
    first, second = graph.add_many("Split", x, graph.ints(size // 2, size // 2), outputs=2, axis=-1)
    cosine, sine = turns
    turned = graph.add("Sub", graph.add("Mul", first, cosine), graph.add("Mul", second, sine))
    other = graph.add("Add", graph.add("Mul", second, cosine), graph.add("Mul", first, sine))
    return graph.add("Concat", turned, other, axis=-1)


def with_past(graph: Graph, fresh: tuple[str, str], past: tuple[str, str], present: list[str]) -> None:
    """New keys and values [B, S, K, D] behind the cached ones [B, K, P, D]; `present` names the results, [B, K, L, D]."""
    for index, (cached, new) in enumerate(zip(past, fresh, strict=True)):
        graph.add_many(
            "Concat", cached, graph.add("Transpose", new, perm=[0, 2, 1, 3]), outputs=[present[index]], axis=2
        )


def standard_attention(graph: Graph, heads: Heads, query: str, held: tuple[str, str], seen: Positions) -> str:
    """Queries [B, S, N, D], keys and values [B, K, L, D] -> [T, N * D]."""
    group = heads.queries // heads.keys
    scaled = graph.add("Mul", query, graph.constant(1 / sqrt(heads.size), FLOAT))
    grouped = _reshaped(graph, scaled, "apart", (-1, seen.new, heads.keys, group, heads.size))
    # the queries that read one key head lie below each other: one product a key head
    stacked = graph.add(
        "Reshape", graph.add("Transpose", grouped, perm=[0, 2, 3, 1, 4]), graph.ints(0, 0, -1, heads.size)
    )
    turned = graph.add("Transpose", held[0], perm=[0, 1, 3, 2])
    scores = _reshaped(
        graph, graph.add("MatMul", stacked, turned), "scores", (-1, heads.keys, group, seen.new, seen.all)
    )
    weights = graph.add("Softmax", graph.add("Add", scores, seen.masks[heads.window]), axis=-1)
    below = _reshaped(graph, weights, "below", (0, heads.keys, -1, seen.all))
    mixed = _reshaped(
        graph, graph.add("MatMul", below, held[1]), "mixed", (-1, heads.keys, group, seen.new, heads.size)
    )
    together = graph.add("Transpose", mixed, perm=[0, 3, 1, 2, 4])
    return graph.add("Reshape", together, graph.ints(-1, heads.queries * heads.size))


def fused_attention(
    graph: Graph, heads: Heads, given: tuple[str, str, str], past: tuple[str, str], present: list[str], rotary: bool
) -> str:
    """Queries, keys and values [B, S, heads * D] -> [B, S, N * D], rotated inside where `rotary`.

    The operator packs a row's keys to the left: rows may be padded on the right only.
    """
    counted = graph.once(("counted",), "ReduceSum", "attention_mask", graph.ints(1), keepdims=0)
    last = graph.once(("last",), "Sub", counted, graph.constant(1, INT64))
    lengths = graph.once(("lengths",), "Cast", last, to=6)
    width = graph.once(("width",), "Shape", "attention_mask", start=1, end=2)
    total = graph.once(("total",), "Cast", graph.once(("one",), "Squeeze", width), to=6)
    tables = TABLES if rotary else ()
    (out, *_) = graph.add_many(
        "GroupQueryAttention",
        *given,
        *past,
        lengths,
        total,
        *tables,
        outputs=[f"{graph.scope}/mixed", *present],
        contrib=True,
        num_heads=heads.queries,
        kv_num_heads=heads.keys,
        do_rotary=int(rotary),
        local_window_size=heads.window or -1,
    )
    return out


def _reshaped(graph: Graph, x: str, key: str, shape: tuple[str | int, ...]) -> str:
    """To a shape of numbers and of names of values [1]."""
    parts = [graph.ints(size) if isinstance(size, int) else size for size in shape]
    return graph.add("Reshape", x, graph.once(("shape", key, shape), "Concat", *parts, axis=0))
