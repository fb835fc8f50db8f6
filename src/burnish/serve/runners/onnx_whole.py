"""A decoder as one graph with its attention inside, for a step of one sequence whose positions lie together in the pool.

A step is then one call: what a token costs beside its products is no longer paid for each layer. Keys and values are written
and read where they lie, since a sequence from some slot of the pool on looks, to the operator, like one of a batch of one whose
room ends later than the pool does; it goes no further than its length. Shape letters: T tokens, R rows whose scores are asked
for, K key/value heads, D size of one head, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from burnish.config import ModelConfig
from burnish.export.onnx_graph import FLOAT, INT32, INT64, Graph
from burnish.export.onnx_linear import linear
from burnish.export.onnx_matrix import array
from burnish.export.onnx_parts import add_norm, vector
from burnish.models.decoder import Block
from burnish.serve.rounding import Scales
from burnish.serve.runners.onnx_bound import Bound
from burnish.serve.runners.onnx_layers import OPSET, Parts, closed, embedded, joined, opened, turns

CACHES, QKV = ("keys", "values"), ("queries", "keys", "values")
INT8, SCALED = "int8", 12  # of a pool; the operator's input that is the first scale
# Pairs of a query and a key over which the operator, which is slow with keys of 8 bits and many queries, takes longer than all
# that a call for each layer costs.
PAIRS = 2**14


def held(scales: Scales | None) -> torch.dtype:
    """What keys and values are held in."""
    return torch.float32 if scales is None else torch.int8


def whole_graph(parts: Parts, scales: Scales | None = None) -> Graph:
    """Token ids [T] to scores [R, V]; with `scales` over keys and values of 8 bits.

    `last`: length of the sequence, these tokens with it, less one; `length` itself; `rows`: of which tokens scores are asked.
    """
    graph, (model, config, form, hold, embed, head) = Graph("whole", OPSET), parts
    if config.traits.learned_positions:
        graph.input("positions", INT64, (1, "tokens"))
    x, more = embedded(graph, form, model, embed, "positions", embed is head), None
    lengths = [graph.input("last", INT32, (1,)), graph.input("length", INT32, ())]
    turned = [] if config.traits.learned_positions else turns(graph, config)
    for layer, block in enumerate(model.layers):
        assert isinstance(block, Block)
        graph.scope = str(layer)
        normed, x = add_norm(graph, form, f"{layer}.norm", block.attention_norm, x, more)
        given = [joined(graph, form, hold, block, normed)]
        if config.traits.qk_norm:
            given = opened(graph, form, block, config, *given)
        rounding = None if scales is None else Scales(*(x[layer] for x in scales))
        attended = _attended(graph, config, layer, given, [*lengths, *turned], rounding)
        x, more = closed(graph, form, hold, block, x, attended)
    graph.scope = "end"
    rows = graph.input("rows", INT64, ("rows",))
    assert more is not None
    x, more = (graph.add("Gather", value, rows) for value in (x, more))
    normed, _ = add_norm(graph, form, "norm", model.norm, x, more)
    graph.output(linear(graph, form, "head", head, normed), "scores", FLOAT, ("rows", config.vocab))
    return graph


def _attended(
    graph: Graph, config: ModelConfig, layer: int, given: Sequence[str], seen: Sequence[str], scales: Scales | None
) -> str:
    """Attention [T, N * D] over the pool, to which keys and values are added in place; they are given apart or side by side."""
    shape, kind = (1, config.kv_heads, "room", config.head_dim), FLOAT if scales is None else INT8
    caches = [graph.input(f"{name}.{layer}", kind, shape) for name in CACHES]
    rounding: list[str] = []
    settings: dict[str, Any] = {}
    if scales is not None:
        names = [f"{name}.{layer}.scale" for name in CACHES]
        rounding = [vector(graph, name, array(x.flatten())) for name, x in zip(names, scales, strict=True)]
        settings = {"kv_cache_bit_width": 8, "k_quant_type": "PER_CHANNEL", "v_quant_type": "PER_CHANNEL"}
    alone = [graph.add("Unsqueeze", part, graph.ints(0)) for part in given]
    windowed = config.window and layer >= config.window_from
    made = graph.add_many(
        "GroupQueryAttention",
        *alone,
        *("" for _ in QKV[len(alone) :]),
        *caches,
        *seen,
        *("" for _ in range(SCALED - len(QKV) - len(CACHES) - len(seen)) if rounding),
        *rounding,
        outputs=[f"{layer}/attended", *(f"{name}.{layer}/out" for name in CACHES)],
        contrib=True,
        num_heads=config.heads,
        kv_num_heads=config.kv_heads,
        do_rotary=int(len(seen) > 2),
        local_window_size=config.window if windowed else -1,
        **settings,
    )
    for name, out in zip(CACHES, made[1:], strict=True):
        graph.output(out, f"{name}.{layer}.out", kind, shape)
    return graph.add("Squeeze", made[0], graph.ints(0))


class Whole:
    """A session of the graph, over keys and values of a type, and where in a pool its last sequence lay."""

    def __init__(self, bound: Bound, config: ModelConfig, dtype: torch.dtype) -> None:
        self.config, self.dtype, self.bound = config, dtype, bound
        self._place: tuple[int, ...] = ()
        self._last, self._length = torch.zeros(1, dtype=torch.int32), torch.zeros((), dtype=torch.int32)
        # Of a step of one token: what lies where it lay needs no new name, and its memory is not new to the system each time.
        self._ids_1, self._rows_1 = torch.zeros(2, 1, dtype=torch.int64)
        self._scores_1V = torch.empty(1, config.vocab)

    def pays(self, start: int, count: int) -> bool:
        """With keys and values of 8 bits, only with few tokens at once."""
        return count == 1 or self.dtype != torch.int8 or count * (start + count / 2) < PAIRS

    def __call__(self, ids_T: Tensor, start: int, rows_R: Tensor, pool: tuple[Tensor, Tensor], slot: int) -> Tensor:
        """Scores [R, V] of tokens from position `start` on, the sequence's first position being at `slot` of a pool's keys
        and values, each [layers, K, slots, D]. Those of one row are overwritten by the next call."""
        end = start + len(ids_T)
        self._lie(pool, slot)
        if len(ids_T) == 1:
            ids_T = self._ids_1.copy_(ids_T)
        asked_R = rows_R if len(rows_R) and len(ids_T) > 1 else self._rows_1
        self._last.fill_(end - 1)
        self._length.fill_(end)
        given = {"ids": ids_T, "rows": asked_R, "last": self._last, "length": self._length}
        if self.config.traits.learned_positions:
            given["positions"] = torch.arange(start, end)[None]
        scores_RV = self._scores_1V if len(asked_R) == 1 else torch.empty(len(asked_R), self.config.vocab)
        self.bound(given, {"scores": scores_RV})
        return scores_RV[: len(rows_R)]

    def _lie(self, pool: tuple[Tensor, Tensor], slot: int) -> None:
        place = (*(x.data_ptr() for x in pool), slot)
        if place != self._place:
            for name, x in zip(CACHES, pool, strict=True):
                for layer, own in enumerate(x):
                    self.bound.lies(f"{name}.{layer}", own.dtype, (1, *own.shape), own[:, slot:].data_ptr())
            self._place = place


@torch.inference_mode()
def one_token(whole: Whole) -> None:
    """A step of one token over an empty pool."""
    config = whole.config
    keys, values = torch.zeros(2, config.layers, config.kv_heads, 1, config.head_dim, dtype=whole.dtype)
    whole(torch.zeros(1, dtype=torch.int64), 0, torch.zeros(1, dtype=torch.int64), (keys, values), 0)
