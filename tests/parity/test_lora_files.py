"""Adapters alone in PEFT's layout: read by its documented formula, and by peft itself where it is installed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from burnish.config import ModelConfig
from burnish.export import adapter as files
from burnish.export.adapter import save_adapter
from burnish.export.merge import merge
from burnish.export.safetensors import named_for_file, save_folder
from burnish.models.decoder import Decoder
from burnish.ops import lora as ops
from burnish.techniques import lora

SIZES = {"vocab": 331, "hidden": 56, "ffn": 117, "heads": 7, "layers": 2, "head_dim": 8, "max_positions": 64}
FAMILIES = {
    "llama": {"kv_heads": 1},
    "qwen2": {"family": "qwen2", "kv_heads": 1, "tied": False},
    "gpt2": {"family": "gpt2", "kv_heads": 7},
    "mixtral": {"family": "mixtral", "kv_heads": 1, "ffn": 32, "experts": 4, "topk": 2},
}
SETTINGS = {"all": {}, "some": {"targets": ("q", "v", "o")}, "rslora": {"rslora": True}}


def adapted_model(family: str, settings: str) -> Decoder:
    """With every B drawn, as after some steps."""
    model = Decoder(ModelConfig(**SIZES | FAMILIES[family], init_std=0.1), torch.Generator().manual_seed(0))
    lora.dress(lora.Config(rank=3, alpha=5.0, **SETTINGS[settings]), model)
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for _, layer in ops.adapted(model):
            layer.b.normal_(0, 0.2, generator=draw)
    return model


def written(family: str, settings: str, folder: Path) -> tuple[Decoder, dict[str, torch.Tensor]]:
    """The merged model, and the base as a file has it; the adapter is in `folder`."""
    model = adapted_model(family, settings)
    base = Decoder(model.shape, torch.Generator().manual_seed(0))
    save_folder(base, model.shape, folder / "base")
    adapters, _ = merge(model)
    save_adapter(adapters, model.shape, folder / "adapter", str(folder / "base"))
    return model, named_for_file(base, model.shape)


def by_the_formula(folder: Path, base: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """W + lora_alpha / r B A for each module that PEFT's settings name, turned where the base keeps [in, out]."""
    settings = json.loads((folder / "adapter_config.json").read_text())
    tensors = load_file(folder / "adapter_model.safetensors")
    merged = {}
    for name in (key.removesuffix(".lora_A.weight") for key in tensors if key.endswith(".lora_A.weight")):
        module = name.removeprefix("base_model.model.")
        (target,) = (t for t in settings["target_modules"] if module.endswith(f".{t}"))
        rank = settings["rank_pattern"].get(target, settings["r"])
        scale = settings["alpha_pattern"].get(target, settings["lora_alpha"]) / rank
        a, b = (tensors[f"{name}.lora_{letter}.weight"].double() for letter in "AB")
        assert a.shape[0] == b.shape[1] == rank
        update = scale * b @ a
        turned = settings["fan_in_fan_out"]
        merged[f"{module}.weight"] = base[f"{module}.weight"] + (update.t() if turned else update)
    assert len(tensors) == 2 * len(merged)
    return merged


def compare(family: str, settings: str, folder: Path) -> None:
    model, base = written(family, settings, folder)
    merged = by_the_formula(folder / "adapter", base)
    for name, weight in named_for_file(model, model.shape).items():
        difference = (merged.get(name, base[name]) - weight).abs().max()
        assert difference < 1e-6, name
        assert (name in merged) == (not torch.equal(weight, base[name])), name


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("settings", SETTINGS)
def test_files_say_what_was_merged(family: str, settings: str, tmp_path: Path) -> None:
    compare(family, settings, tmp_path)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("settings", SETTINGS)
def test_peft_gives_the_same_logits(family: str, settings: str, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    from transformers import AutoModelForCausalLM

    model, _ = written(family, settings, tmp_path)
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "base", dtype=torch.float32).eval()
    ids = torch.randint(model.shape.vocab, (2, 33), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        ours = model.logits(model(ids))
        unlike = plain(ids).logits
        theirs = peft.PeftModel.from_pretrained(plain, tmp_path / "adapter")(ids).logits
    assert (ours - theirs).abs().max() < 1e-5 * ours.abs().max()
    assert (ours - unlike).abs().max() > 1e-2 * ours.abs().max()


def test_an_earlier_adapter_is_replaced_and_nothing_else(tmp_path: Path) -> None:
    written("llama", "all", tmp_path)
    written("llama", "some", tmp_path)
    names = sorted(path.name for path in (tmp_path / "adapter").iterdir())
    assert names == ["adapter_config.json", "adapter_model.safetensors"]
    assert json.loads((tmp_path / "adapter" / names[0]).read_text())["target_modules"] == [
        "self_attn.o_proj",
        "self_attn.q_proj",
        "self_attn.v_proj",
    ]


@pytest.mark.sabotage
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_an_update_merged_transposed_is_noticed(family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of square matrices, where shapes do not say so."""
    right = ops.Adapter.update

    def turned(self: ops.Adapter) -> torch.Tensor:
        made = right(self)
        return made.t().contiguous() if made.shape[0] == made.shape[1] else made

    compare(family, "all", tmp_path / "right")
    monkeypatch.setattr(ops.Adapter, "update", turned)
    with pytest.raises(AssertionError):
        compare(family, "all", tmp_path / "turned")


@pytest.mark.sabotage
def test_a_joined_adapter_with_its_parts_swapped_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = files._joined

    def swapped(link, adapters, config):
        made = right(link, adapters, config)
        return ops.Adapter(made.a.flip(0), made.b, made.scale)

    monkeypatch.setattr(files, "_joined", swapped)
    with pytest.raises(AssertionError):
        compare("gpt2", "all", tmp_path)
