"""A small model folder as others write it, sharded or not, and what a refusal of it must look like."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from burnish.errors import UserError
from burnish.load.folder import open_folder

NAMES = {"a.weight": (3, 4), "b.weight": (5,), "c.bias": ()}


def weights(dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    made = torch.Generator().manual_seed(0)
    return {name: torch.randn(shape, generator=made).to(dtype) for name, shape in NAMES.items()}


def made_folder(where: Path) -> Path:
    where.mkdir()
    (where / "config.json").write_text(json.dumps({"model_type": "llama", "hidden_size": 4}))
    (where / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 3]}))
    (where / "tokenizer.json").write_text(json.dumps({"model": {"vocab": {"é": 0}}}))
    (where / "tokenizer_config.json").write_text(json.dumps({"chat_template": "settings"}))
    save_file(weights(), where / "model.safetensors", metadata={"format": "pt"})
    return where


def sharded(folder: Path, suffix: str = "safetensors") -> Path:
    """The same tensors, one a shard, and the index."""
    for old in folder.glob("model*"):
        old.unlink()
    stem, placed = {"safetensors": "model", "bin": "pytorch_model"}[suffix], {}
    for number, (name, tensor) in enumerate(weights().items(), 1):
        file = f"{stem}-{number:05d}-of-00003.{suffix}"
        save_file({name: tensor}, folder / file) if suffix != "bin" else torch.save({name: tensor}, folder / file)
        placed[name] = file
    index = folder / ("model.safetensors.index.json" if suffix != "bin" else "pytorch_model.bin.index.json")
    index.write_text(json.dumps({"metadata": {}, "weight_map": placed}))
    return index


def read_all(folder: Path) -> dict[str, torch.Tensor]:
    return {name: tensor.read() for name, tensor in open_folder(folder).tensors.items()}


def refused(folder: Path, *parts: str) -> str:
    with pytest.raises(UserError) as caught:
        read_all(folder)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 600
    for part in parts:
        assert part in message
    return message
