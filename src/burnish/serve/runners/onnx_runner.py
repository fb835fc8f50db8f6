"""The runner of onnxruntime: between two attentions one small graph of its fastest operators, matrices in whatever format
the model has them.

A graph closes one layer and opens the next: output product, norm, feed-forward part, norm, and the products of queries, keys
and values, which are one, as are those of gate and up. All graphs share one pool of threads, which sleep in between: torch
computes attention on the same cores. Shape letters: T packed tokens, H hidden size, R rows whose scores are asked for.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from burnish.config import ModelConfig
from burnish.errors import UserError
from burnish.export.onnx_file import writing
from burnish.export.onnx_graph import FLOAT, INT64, Graph
from burnish.export.onnx_linear import Form, linear
from burnish.export.onnx_matrix import Matrix, array, matrix_of
from burnish.export.onnx_parts import activation, add_norm, gated_silu, looked_up, norm, vector
from burnish.models.decoder import Block, Decoder
from burnish.models.rotary import rotary_angles
from burnish.onnx_layout import TABLES
from burnish.serve.runners.blocks import Blocks, blocks4, product
from burnish.serve.runners.runner import Made

Weights = Literal["float", "q4"]
Hold = Callable[[Matrix], Blocks]
HOLD: dict[str, Hold] = {"float": Blocks, "q4": blocks4}
INPUT = "input_scale"  # of a matrix whose inputs are rounded by one scale
OPSET = 23
ROUNDED = 4  # MatMulNBits rounds its inputs to 8 bits a block


class OnnxRunner:
    """Graphs of one decoder. `words`: what the vocabulary's matrix is stored as, in place of the model's own.

    `weights` q4 puts float matrices in blocks of 4 bits, float leaves every one as it is. `accuracy`: 1 keeps the inputs of
    4-bit products in float32. Raises UserError for a decoder with experts, and for a matrix that blocks do not divide.
    """

    dtype, device = torch.float32, torch.device("cpu")

    def __init__(
        self,
        model: Decoder,
        config: ModelConfig,
        threads: int,
        words: Matrix | None = None,
        weights: Weights = "float",
        accuracy: int = ROUNDED,
    ) -> None:
        if config.experts:
            raise UserError("runner onnxruntime: layers with experts have no graph here; use the runner torch")
        self.config = config
        form, hold = Form(fused=True, accuracy=accuracy), HOLD[weights]
        head = words or matrix_of("head", model.head)
        embed = head if config.tied else matrix_of("embed", model.embed)
        layers = [block for block in model.layers if isinstance(block, Block)]
        graphs = [_first(model, form, embed, hold)]
        graphs += [_between(one, other, config, form, hold) for one, other in itertools.pairwise(layers)]
        graphs.append(_last(model, form, head, hold))
        with tempfile.TemporaryDirectory() as folder:
            self.sessions = [_session(graph, Path(folder) / f"{k}.onnx", threads) for k, graph in enumerate(graphs)]

    def begin(self, ids_T: Tensor, positions_T: Tensor) -> Made:
        places = positions_T[None].numpy()
        return self._made(self.sessions[0].run(None, {"ids": ids_T.numpy(), "positions": places}), places)

    def go_on(self, layer: int, made: Made, attended_TND: Tensor) -> Made:
        given = {"hidden": made.hidden.numpy(), "attended": attended_TND.flatten(-2).numpy(), "positions": made.places}
        return self._made(self.sessions[layer + 1].run(None, given), made.places)

    def scores(self, made: Made, attended_TND: Tensor, rows_R: Tensor) -> Tensor:
        given = {"hidden": made.hidden[rows_R].numpy(), "attended": attended_TND[rows_R].flatten(-2).numpy()}
        (scores_RV,) = self.sessions[-1].run(None, given)
        return torch.from_numpy(scores_RV)

    def _made(self, found: Sequence[Any], places: Any) -> Made:
        hidden, *parts = (torch.from_numpy(x) for x in found)
        q, k, v = (part.view(len(hidden), -1, self.config.head_dim) for part in parts)
        return Made(hidden, q, k, v, places)


def _first(model: Decoder, form: Form, embed: Matrix, hold: Hold) -> Graph:
    """Token ids and positions to the first layer's hidden states, queries, keys and values."""
    graph = Graph("first", OPSET)
    graph.input("ids", INT64, ("tokens",))
    x = looked_up(graph, form, "embed", embed, "ids")
    if model.positions is not None:
        flat = graph.add("Reshape", "positions", graph.ints(-1))
        x = graph.add("Add", x, looked_up(graph, form, "learned", matrix_of("positions", model.positions), flat))
    block = model.layers[0]
    assert isinstance(block, Block)
    normed = norm(graph, form, "norm", block.attention_norm, x)
    return _opened(graph, form, hold, block, model.shape, (x, normed))


def _between(block: Block, after: Block, config: ModelConfig, form: Form, hold: Hold) -> Graph:
    """What attention gave of one layer to the hidden states, queries, keys and values of the next."""
    graph = Graph("between", OPSET)
    x, more = _closed(graph, form, hold, block)
    normed, x = add_norm(graph, form, "norm", after.attention_norm, x, more)
    return _opened(graph, form, hold, after, config, (x, normed))


def _last(model: Decoder, form: Form, head: Matrix, hold: Hold) -> Graph:
    """What attention gave of the last layer to scores."""
    graph = Graph("last", OPSET)
    block = model.layers[-1]
    assert isinstance(block, Block)
    x, more = _closed(graph, form, hold, block)
    normed, _ = add_norm(graph, form, "norm", model.norm, x, more)
    graph.output(linear(graph, form, "head", head, normed), "scores", FLOAT, ("rows", model.shape.vocab))
    return graph


def _closed(graph: Graph, form: Form, hold: Hold, block: Block) -> tuple[str, str]:
    """Output product and feed-forward part of a layer: the sum before the latter, and what it adds."""
    o = matrix_of("o", block.attention.o)
    graph.input("hidden", FLOAT, ("tokens", o.shape[0]))
    graph.input("attended", FLOAT, ("tokens", o.shape[1]))
    normed, x = add_norm(
        graph, form, "mlp_norm", block.mlp_norm, "hidden", product(graph, form, "o", hold(o), "attended")
    )
    mlp: Any = block.mlp
    if hasattr(mlp, "gate"):
        both = product(
            graph, form, "gate_up", hold(stacked([matrix_of("gate", mlp.gate), matrix_of("up", mlp.up)])), normed
        )
        gate, up = graph.add_many("Split", both, outputs=2, axis=-1, num_outputs=2)
        inner = gated_silu(graph, form, gate, up)
    else:
        inner = activation(graph, "gelu_tanh", product(graph, form, "up", hold(matrix_of("up", mlp.up)), normed))
    return x, product(graph, form, "down", hold(matrix_of("down", mlp.down)), inner)


def _opened(graph: Graph, form: Form, hold: Hold, block: Block, config: Any, given: tuple[str, str]) -> Graph:
    """Queries, keys and values of a layer, normed and turned as its family does it."""
    (x, normed), attention, size = given, block.attention, config.head_dim
    graph.input("positions", INT64, (1, "tokens"))
    counts = (config.heads, config.kv_heads, config.kv_heads)
    modules: tuple[nn.Module, ...] = (attention.q, attention.k, attention.v)
    whole = product(graph, form, "qkv", hold(stacked([matrix_of("qkv", module) for module in modules])), normed)
    parts = graph.add_many("Split", whole, graph.ints(*(count * size for count in counts)), outputs=3, axis=-1)
    graph.output(x, "hidden_out", FLOAT, ("tokens", config.hidden))
    norms = (attention.q_norm, attention.k_norm, None)
    for name, part, count, own in zip("qkv", parts, counts, norms, strict=True):
        if own is not None:
            apart = graph.add("Reshape", part, graph.ints(-1, count, size))
            part = graph.add("Reshape", norm(graph, form, f"{name}_norm", own, apart), graph.ints(-1, count * size))
        if name != "v" and not config.traits.learned_positions:
            part = _turned(graph, config, part, count)
        graph.output(part, name, FLOAT, ("tokens", count * size))
    return graph


def _turned(graph: Graph, config: Any, part: str, count: int) -> str:
    """Rotary positions of [T, heads * D]."""
    every = torch.arange(config.max_positions)[None]
    angles = rotary_angles(every, config.head_dim, config.rope_theta, torch.float32, config.rope_scaling)
    tables = [vector(graph, name, array(angle[0, :, 0])) for name, angle in zip(TABLES, angles, strict=True)]
    alone = graph.add("Unsqueeze", part, graph.ints(0))
    turned = graph.add("RotaryEmbedding", alone, "positions", *tables, contrib=True, num_heads=count)
    return graph.add("Squeeze", turned, graph.ints(0))


def stacked(parts: Sequence[Matrix]) -> Matrix:
    """Matrices that read the same input as one, their outputs one after another. They must be of one format, and round their
    input alike."""
    first = parts[0]
    alike = [part.kind == first.kind and part.arrays.get(INPUT) == first.arrays.get(INPUT) for part in parts]
    if not all(alike):
        raise UserError("runner onnxruntime: matrices that read one input are of several formats; use the runner torch")
    names = [name for name in first.arrays if name != INPUT]
    arrays: dict[str, Any] = {name: np.concatenate([part.arrays[name] for part in parts]) for name in names}
    arrays |= {INPUT: first.arrays[INPUT]} if INPUT in first.arrays else {}
    biases = [part.bias for part in parts]
    joined = None if biases[0] is None else np.concatenate([bias for bias in biases if bias is not None])
    return Matrix(parts[0].kind, arrays, joined)


def _session(graph: Graph, path: Path, threads: int) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    with writing(graph, path) as written:
        return onnxruntime.InferenceSession(str(written), options, providers=["CPUExecutionProvider"])
