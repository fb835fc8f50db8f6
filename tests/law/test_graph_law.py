"""The law for the weights of the engine's graphs: their bytes, matrix by matrix as they were handed over, are those predicted."""

from __future__ import annotations

from typing import Literal

import pytest
import torch

import onnx_models as own
from burnish.graph_size import graph_bytes
from burnish.serve.opening import Settings, make_runner
from burnish.serve.runners.onnx_runner import OnnxRunner
from burnish.weight_format import MATRICES, IntWeights

SCHEMES = {
    "float": None,
    "4 bits": IntWeights(4, 32, True, "float32"),
    "4 bits with zero points": IntWeights(4, 16, False, "float32"),
    "8 bits": IntWeights(8, -1, True, "float32", "tensor"),
}
FAMILIES = {
    "qwen3": {"family": "qwen3"},
    "qwen2": {"family": "qwen2", "tied": False, "kv_heads": 1},
    "gpt2": {"family": "gpt2", "kv_heads": 6},
    "one layer": {"layers": 1},
    "heads of 8": {"heads": 12, "head_dim": 8},
}


def check(
    changes: dict,
    scheme: str,
    weights: Literal["float", "q4"] = "float",
    head: Literal["auto", "int8", "int4"] = "auto",
) -> None:
    """The named check: of graphs that a model is opened in, against what is said before."""
    config, kind = own.config_of(**changes), SCHEMES[scheme]
    model = own.decoder(config)
    model = model if kind is None else own.compressed(model, kind)
    kinds = {f"layers.{i}.{name}": kind for i in range(config.layers) for name in MATRICES}
    settings = Settings(2**24, runner="onnxruntime", weights=weights, head=head)
    texts = [torch.arange(12).tolist(), torch.arange(30, 60).tolist()]
    runner = make_runner(model, config, settings, texts)
    assert isinstance(runner, OnnxRunner)
    plain = "int8" if weights == "q4" else "float32"
    scores = plain if head == "auto" else head
    table = "float32" if not config.tied else plain if head == "int4" else scores
    assert runner.held == graph_bytes(config, kinds, weights, table, scores)
    assert bool(runner.held.whole) == (config.head_dim == 16) == (runner.whole is not None)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("changes", FAMILIES.values(), ids=FAMILIES)
def test_the_bytes_of_its_graphs_are_those_predicted(changes: dict, scheme: str) -> None:
    check(changes, scheme)


@pytest.mark.parametrize("head", ["auto", "int8", "int4"])
@pytest.mark.parametrize("weights", ["float", "q4"])
@pytest.mark.parametrize("changes", FAMILIES.values(), ids=FAMILIES)
def test_so_are_those_of_blocks_and_of_the_vocabulary(
    changes: dict, weights: Literal["float", "q4"], head: Literal["auto", "int8", "int4"]
) -> None:
    check(changes, "float", weights, head)


def test_a_layer_is_held_once_in_the_cut_graphs_and_once_in_that_of_all() -> None:
    config = own.config_of()
    found, twice = graph_bytes(config, {}), config.vocab * config.hidden * 4
    assert config.tied
    assert found.cut - found.whole == twice  # the table stands in the first graph and in the last
    more = graph_bytes(config.model_copy(update={"layers": config.layers + 1}), {})
    assert more.cut - found.cut == more.whole - found.whole > 0
    assert found.tables == config.max_positions * config.head_dim * 4


def test_large_weights_are_held_once() -> None:
    config = own.config_of(layers=2)
    assert graph_bytes(config.model_copy(update={"ffn": 2**16}), {}).whole > 0
    assert graph_bytes(config.model_copy(update={"ffn": 2**17}), {}).whole == 0


@pytest.mark.sabotage
def test_blocks_without_their_least_values_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    from burnish.serve.runners import blocks

    product = blocks.Blocks
    monkeypatch.setattr(blocks, "Blocks", lambda integers, middle=None: product(integers))
    with pytest.raises(AssertionError):
        check(FAMILIES["qwen3"], "float", "q4")
