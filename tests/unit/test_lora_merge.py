"""Merging adapters: summed in float32, rounded once, and what the rounding takes from the update is said."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from burnish.config import ModelConfig
from burnish.export.gguf import save_gguf
from burnish.export.merge import kept, logits, merge
from burnish.export.safetensors import save_folder
from burnish.load.folder import open_folder
from burnish.load.gguf import open_gguf
from burnish.load.model import load_folder, load_model
from burnish.models.decoder import Decoder
from burnish.ops import lora as ops
from burnish.techniques import lora

SHAPE = ModelConfig(vocab=300, hidden=64, ffn=128, heads=4, kv_heads=2, layers=3, max_positions=64, init_std=0.1)


def adapted_on(model: Decoder, size: float) -> Decoder:
    """Adapters whose updates have elements of about `size` beside weights of 0.1."""
    lora.dress(lora.Config(rank=4, alpha=8.0), model)
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for _, layer in ops.adapted(model):
            drawn = torch.randn(layer.b.shape, generator=draw)
            layer.b.copy_(drawn * (size / layer.scale * math.sqrt(layer.in_features)))
    return model


def fresh(size: float = 0.01) -> Decoder:
    return adapted_on(Decoder(SHAPE, torch.Generator().manual_seed(0)), size)


def test_merged_equals_adapted_within_float32_rounding() -> None:
    model = fresh()
    before = logits(model)
    wide = {
        name: layer.weight.double() + layer.scale * layer.b.double() @ layer.a.double()
        for name, layer in ops.adapted(model)
    }
    adapters, found = merge(model)
    assert adapters.keys() == wide.keys()
    assert found["merged_equals_adapted"]
    difference = ((logits(model) - before).abs().max() / before.abs().max()).item()
    assert found["merged_logits_difference"] <= found["merged_logits_largest"] == difference < 1e-5
    assert not list(ops.adapted(model))
    for name, exact in wide.items():
        assert (model.get_submodule(name).weight - exact).abs().max() < 1e-7


def test_nothing_is_said_of_a_model_without_adapters() -> None:
    model = Decoder(SHAPE, torch.Generator().manual_seed(0))
    assert merge(model) == ({}, {})
    assert kept({}, model, model) == {}


def test_the_base_is_not_written_to() -> None:
    model = fresh()
    layer = model.layers[0].attention.q
    held, before = layer.weight, layer.weight.detach().clone()
    merge(model)
    assert torch.equal(held, before)


def rounded_once() -> None:
    """A base in 16 bits: W + update in float32, then one rounding."""
    model = fresh().to(torch.bfloat16)
    right = {
        name: (layer.weight.float() + layer.scale * (layer.b.float() @ layer.a.float())).bfloat16()
        for name, layer in ops.adapted(model)
    }
    merge(model)
    assert all(torch.equal(model.get_submodule(name).weight, weight) for name, weight in right.items())


def test_a_merge_in_16_bits_rounds_once() -> None:
    rounded_once()


@pytest.mark.sabotage
def test_a_merge_that_rounds_twice_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = ops.Adapter.update
    monkeypatch.setattr(ops.Adapter, "update", lambda self: right(self).to(torch.bfloat16))
    with pytest.raises(AssertionError):
        rounded_once()


@pytest.mark.parametrize(
    ("dtype", "low", "high"), [("float32", math.inf, math.inf), ("float16", 45, 60), ("bfloat16", 25, 42)]
)
def test_a_folder_says_what_its_format_keeps_of_the_update(dtype: str, low: float, high: float, tmp_path: Path) -> None:
    model = fresh()
    adapters, _ = merge(model)
    save_folder(model, SHAPE, tmp_path / "out", dtype=dtype)
    found = kept(adapters, model, load_folder(tmp_path / "out")[0])
    assert low <= found.get("update_sqnr_db", math.inf) <= high
    assert str(found["adapters"]).startswith(f"{len(adapters)} merged in float32, ")


def quantized_base(folder: Path) -> Decoder:
    """A base that lies on a grid of four bits: quantized, then read back."""
    save_folder(Decoder(SHAPE, torch.Generator().manual_seed(0)), SHAPE, folder / "plain")
    save_gguf(open_folder(folder / "plain"), folder / "base.gguf", "Q4_0")
    return load_model(open_gguf(folder / "base.gguf"), dtype=torch.float32)[0]


def written_as(form: str, model: Decoder, folder: Path) -> Decoder:
    save_folder(model, SHAPE, folder / "merged")
    save_gguf(open_folder(folder / "merged"), folder / f"{form}.gguf", form)
    return load_model(open_gguf(folder / f"{form}.gguf"))[0]


def test_flt_093_merging_into_a_four_bit_base_again_says_that_it_loses_the_update(tmp_path: Path) -> None:
    """The grid of four bits is wider than the update: what is rounded off is more than what was learned."""
    model = adapted_on(quantized_base(tmp_path), 0.003)
    adapters, found = merge(model)
    assert found["merged_equals_adapted"]  # on the dequantized base nothing is lost
    narrow = kept(adapters, model, written_as("Q4_0", model, tmp_path))
    assert narrow["update_sqnr_db"] < 0
    assert "rounds off more than they add: store it wider" in narrow["adapters"]
    eight = kept(adapters, model, written_as("Q8_0", model, tmp_path))
    half = kept(adapters, model, written_as("F16", model, tmp_path))
    assert narrow["update_sqnr_db"] + 15 < eight["update_sqnr_db"] < half["update_sqnr_db"] - 15
    assert "store it wider" not in half["adapters"]


def test_flt_094_the_drift_of_a_rounded_merge_is_stated(tmp_path: Path) -> None:
    """The stated difference of logits is the one that a user of the file gets, and a wider file makes it small."""
    model = adapted_on(quantized_base(tmp_path), 0.003)
    adapters, _ = merge(model)
    stated = {}
    for form in ("Q4_0", "BF16"):
        stored = written_as(form, model, tmp_path)
        found = kept(adapters, model, stored)
        right = logits(model)
        difference = (logits(stored.float()) - right).abs().max() / right.abs().max()
        assert found["rounded_logits_difference"] == pytest.approx(difference.item(), rel=1e-5)
        stated[form] = found["rounded_logits_difference"]
    assert stated["BF16"] < 0.02 < 5 * stated["BF16"] < stated["Q4_0"]
