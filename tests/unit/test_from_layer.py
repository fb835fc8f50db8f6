"""Parts looked at from their layer on: the numbers of whole runs, bit for bit, within one layer's memory."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from test_calibration_faults import Letters
from torch import nn

from awq_models import FAMILIES, decoder, samples
from burnish.compress import from_layer
from burnish.compress.divergence import TokenProbe, VectorProbe
from burnish.compress.sensitivity import Exchange, alone, mixed, parts_of
from burnish.load.sentence_folder import Pooling
from burnish.mesh import Mesh
from burnish.serve.embed import Embedder
from burnish.techniques import awq, int8
from int8_models import encoder

TEXTS = ["one", "another text", "and a third that is longer than these", "x"]


def passes(model: Any) -> list[int]:
    """How often each layer's attention ran."""
    count = [0] * len(model.layers)
    for number, layer in enumerate(model.layers):

        def seen(*_: Any, number: int = number) -> None:
            count[number] += 1

        layer.attention.register_forward_pre_hook(seen)
    return count


def case(name: str) -> tuple[Any, Any, Any]:
    """A model, the same rounded, and a probe: of rows of unequal length, two at a time, or of texts."""
    if name == "encoder":
        model, config = encoder()
        made = int8.apply(int8.Config(activations="dynamic", smooth="off"), copy.deepcopy(model), Mesh())
        return model, made, VectorProbe(Embedder(model, config, Letters(), Pooling("mean", True, 64)), TEXTS)  # type: ignore[arg-type]
    model = decoder(name)
    made = awq.apply(awq.Config(method="rtn", group=32), copy.deepcopy(model), Mesh())
    return model, made, TokenProbe(model, samples(name), 2)


def whole(model: nn.Module, made: nn.Module, parts: list[Exchange], probe: Any) -> list[float]:
    return [probe.seen(mixed(model, made, [part])).divergence for part in parts]


@pytest.mark.parametrize("name", [*FAMILIES, "encoder"])
def test_harm_is_that_of_whole_runs(name: str) -> None:
    model, made, probe = case(name)
    parts = parts_of(model, made)
    assert len(parts) == 4
    assert [part.layer for part in parts] == [0, 0, 1, 1]
    found = alone(model, made, parts, probe)
    assert found == whole(model, made, parts, probe)
    assert len({*found}) == 4
    assert torch.equal(probe.run(model)[0], probe.run(model)[0]) if name != "encoder" else True


def test_layers_before_a_part_run_once() -> None:
    model, made, probe = case("llama")
    parts, count = parts_of(model, made), passes(model)
    alone(model, made, parts, probe)
    batches = 3
    # Layer 0: its own mlp's run, and once for what is kept. Layer 1: behind both parts of layer 0, and its own mlp's run.
    assert count == [2 * batches, 3 * batches]


def test_an_end_of_the_model_and_parts_out_of_order_run_whole() -> None:
    model, made, probe = case("qwen2")
    with torch.no_grad():
        made.embed.weight.mul_(1.01)
    parts = parts_of(model, made)
    assert parts[-1].layer is None
    shuffled = [parts[-1], *parts[3:1:-1], *parts[:2]]
    assert alone(model, made, shuffled, probe) == whole(model, made, shuffled, probe)


def test_states_beyond_a_layers_memory_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    model, made, probe = case("mixtral")
    parts = parts_of(model, made)
    wanted = whole(model, made, parts, probe)
    monkeypatch.setattr(from_layer, "SMALL", 0)
    monkeypatch.setattr(from_layer, "held_bytes", lambda layer: 4 * 64 * 17)  # fewer than the rows' states take
    walk = from_layer.FromLayer(model, probe.run)
    changed = mixed(model, made, [parts[3]])
    assert walk.shortened(changed, 1) is changed
    assert not walk._states
    assert alone(model, made, parts, probe) == wanted


@pytest.mark.sabotage
def test_sabotage_states_of_one_batch_for_another_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = from_layer.FromLayer._skipped

    def turned(walk: Any) -> Any:
        walk._states = [state.flip(0) for state in walk._states]
        return right(walk)

    monkeypatch.setattr(from_layer.FromLayer, "_skipped", turned)
    with pytest.raises(AssertionError):
        test_harm_is_that_of_whole_runs("llama")
