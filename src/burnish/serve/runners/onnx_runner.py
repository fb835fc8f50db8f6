"""The runner of onnxruntime: between two attentions one graph, its inputs and outputs in buffers made once.

Between graphs their threads sleep, since torch computes attention on the same cores. Shape letters: T packed tokens, H hidden size,
R rows whose scores are asked for.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from burnish.config import ModelConfig
from burnish.errors import UserError
from burnish.export.onnx_graph import Graph
from burnish.export.onnx_matrix import Matrix, matrix_of_integers
from burnish.graph_size import GraphBytes, together
from burnish.models.decoder import Decoder
from burnish.serve.rounding import Scales
from burnish.serve.runners.onnx_bound import Bound, soonest
from burnish.serve.runners.onnx_layers import Parts, Weights, graphs_of, last_graph, turning
from burnish.serve.runners.onnx_whole import Whole, held, one_token, whole_graph
from burnish.serve.runners.runner import Fit, Made

ROUNDED = 4  # MatMulNBits rounds its inputs to 8 bits a block
TRIED = 16  # tokens of the run by which it is found whether threads stay awake


class OnnxRunner:
    """Graphs of one decoder. `words`: what the vocabulary's matrix is stored as, in place of the model's own.

    `weights` q4 puts float matrices in blocks of 4 bits, float leaves every one as it is. `accuracy`: 1 keeps the inputs of
    4-bit products in float32. `fit`: what is asked, once the plain graphs are there, for scales under which keys and values are
    held in 8 bits and for a matrix of scores. What `begin` and `go_on` give lies in buffers that the next call may write to.
    Raises UserError for a decoder with experts, and for a matrix that blocks do not divide.
    """

    dtype, device, exact = torch.float32, torch.device("cpu"), False

    def __init__(
        self,
        model: Decoder,
        config: ModelConfig,
        threads: int,
        words: Matrix | None = None,
        weights: Weights = "float",
        accuracy: int = ROUNDED,
        fit: Fit | None = None,
    ) -> None:
        if config.experts:
            raise UserError("runner onnxruntime: layers with experts have no graph here; use the runner torch")
        self.config, self.threads = config, threads
        self.buffers = Buffers(config, 1)
        parts = Parts.of(model, config, words, weights, accuracy)
        graphs = graphs_of(parts)
        self.whole: Whole | None = None
        self.scales: Scales | None = None
        tables = turning(config)
        with tempfile.TemporaryDirectory() as folder:
            make = partial(_made, Path(folder), threads, tables)
            self.graphs = _sessions(graphs, config, make, threads)
            if fit is not None:
                self.scales, head = fit(self)
                self.buffers = Buffers(config, 1)  # no larger for what it was fitted to
                if head is not None:
                    parts = parts._replace(head=matrix_of_integers(head, config.hidden // head.scale.shape[1]))
                    self.graphs[-1] = make(last_graph(parts), self.graphs[-1].awake)
            cut = sum(bound.bytes for bound in self.graphs)
            if together(config, cut):
                graph, dtype = whole_graph(parts, self.scales), held(self.scales)
                self.whole = soonest(lambda awake: Whole(make(graph, awake), config, dtype), one_token, threads)
        whole_bytes = 0 if self.whole is None else self.whole.bound.bytes
        self.held: GraphBytes | None = GraphBytes(cut, whole_bytes, sum(x.nbytes for x in tables.values()))

    @property
    def bytes(self) -> int:
        return self.buffers.bytes

    def reserve(self, tokens: int) -> None:
        """Make the buffers large enough for steps of so many tokens."""
        if tokens > self.buffers.tokens:
            self.buffers = Buffers(self.config, tokens)

    def begin(self, ids_T: Tensor, positions_T: Tensor) -> Made:
        self.reserve(len(ids_T))
        buffers, count = self.buffers, len(ids_T)
        ids, places = buffers.ids[:count], buffers.positions[:, :count]
        ids.copy_(ids_T)
        places[0].copy_(positions_T)
        return self._opened(0, {"ids": ids}, places)

    def go_on(self, layer: int, made: Made, attended_TND: Tensor) -> Made:
        given = {"hidden": made.hidden, "attended": attended_TND.flatten(-2).contiguous()}
        return self._opened(layer + 1, given, made.places)

    def scores(self, made: Made, attended_TND: Tensor, rows_R: Tensor) -> Tensor:
        buffers, count = self.buffers, len(rows_R)
        hidden, attended = buffers.last_hidden[:count], buffers.last_attended[:count]
        torch.index_select(made.hidden, 0, rows_R, out=hidden)
        torch.index_select(attended_TND.flatten(-2), 0, rows_R, out=attended)
        scores_RV = torch.empty(count, self.config.vocab)
        self.graphs[-1]({"hidden": hidden, "attended": attended}, {"scores": scores_RV})
        return scores_RV

    def _opened(self, number: int, given: dict[str, Tensor], places: Tensor) -> Made:
        buffers, count = self.buffers, places.shape[1]
        hidden, q, k, v = (x[:count] for x in (buffers.hidden[number % 2], buffers.q, buffers.k, buffers.v))
        self.graphs[number](given | {"positions": places}, {"hidden_out": hidden, "q": q, "k": k, "v": v})
        q, k, v = (part.view(count, -1, self.config.head_dim) for part in (q, k, v))
        return Made(hidden, q, k, v, places)


def _made(folder: Path, threads: int, tables: Mapping[str, Tensor], graph: Graph, awake: int) -> Bound:
    return Bound(graph, folder / f"{graph.name}.onnx", threads, tables, awake)


def _sessions(
    graphs: Sequence[Graph], config: ModelConfig, make: Callable[[Graph, int], Bound], threads: int
) -> list[Bound]:
    """Their threads sleep between products, or stay awake for a moment, as the second graph is sooner done."""

    def once(bound: Bound) -> None:
        given = {"hidden": buffers.hidden[0], "attended": buffers.last_attended, "positions": buffers.positions}
        bound(given, {"hidden_out": buffers.hidden[1], "q": buffers.q, "k": buffers.k, "v": buffers.v})

    if len(graphs) == 2:
        return [make(graph, 0) for graph in graphs]
    buffers = Buffers(config, TRIED)
    first, second, *others = graphs
    one = soonest(partial(make, second), once, threads)
    return [make(first, one.awake), one, *(make(graph, one.awake) for graph in others)]


class Buffers:
    """Inputs and outputs of graphs for at most `tokens` packed tokens: hidden states of two layers in turn, the rest of one."""

    def __init__(self, config: ModelConfig, tokens: int) -> None:
        size = config.head_dim
        self.tokens = tokens
        self.ids, self.positions = (torch.zeros(shape, dtype=torch.int64) for shape in ((tokens,), (1, tokens)))
        self.hidden = [torch.zeros(tokens, config.hidden) for _ in range(2)]
        self.q, self.last_attended = (torch.zeros(tokens, config.heads * size) for _ in range(2))
        self.k, self.v = (torch.zeros(tokens, config.kv_heads * size) for _ in range(2))
        self.last_hidden = torch.zeros(tokens, config.hidden)

    @property
    def bytes(self) -> int:
        """Bytes of all of them."""
        held = (self.ids, self.positions, *self.hidden, self.q, self.k, self.v, self.last_hidden, self.last_attended)
        return sum(x.nbytes for x in held)
