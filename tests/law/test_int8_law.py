"""The law for 8-bit integers: bytes of files and of the model in memory are those predicted."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

from burnish import weight_format
from burnish.describe import Shapes, describe
from burnish.encoders.describe import describe_encoder
from burnish.export.compressed_tensors import save_compressed
from burnish.load.folder import open_folder
from burnish.load.model import load_model
from burnish.mesh import Mesh
from burnish.ops.int8_linear import Int8Linear
from burnish.techniques import int8
from burnish.techniques.int8 import Config
from burnish.work import state_bytes
from int8_models import decoder, encoder, samples

SETTINGS: dict[str, dict[str, Any]] = {
    "static": {"calibrator": "max"},
    "dynamic": {"activations": "dynamic"},
    "kept": {"calibrator": "entropy", "keep": ("layers.1.mlp.down", "attention.o")},
    "16 bits": {"calibrator": "max", "smooth": "off", "dtype": "bfloat16"},
}
settings = pytest.mark.parametrize("name", SETTINGS)


def made(model: Any, config: Config) -> Any:
    own = copy.deepcopy(model)
    return int8.apply(config, own, Mesh(), int8.search(config, own, samples()))


def check_memory(kind: str, name: str) -> None:
    config = Config(**SETTINGS[name])
    model, sizes = {"decoder": decoder, "encoder": encoder}[kind]()
    shapes = Shapes(rows=1, seq=8)
    work = describe(sizes, shapes) if kind == "decoder" else describe_encoder(sizes, shapes)
    predicted = state_bytes(int8.predict(config, work, Mesh()))
    compressed = made(model, config)
    held = {t.data_ptr(): t.nbytes for t in (*compressed.parameters(), *compressed.buffers())}
    assert predicted == {"parameter": sum(held.values()), "gradient": 0, "optimizer": 0}


@settings
@pytest.mark.parametrize("kind", ["decoder", "encoder"])
def test_bytes_in_memory(kind: str, name: str) -> None:
    check_memory(kind, name)


def check_files(folder: Path, name: str, limit: int) -> None:
    config = Config(**SETTINGS[name])
    model, sizes = decoder()
    compressed = made(model, config)
    names = [key for key, module in compressed.named_modules() if isinstance(module, torch.nn.Linear)]
    kept = frozenset(names) - {"head"}
    save_compressed(compressed, sizes, folder, shard_bytes=limit)
    found = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    assert found == weight_format.file_bytes(sizes, config.scheme, limit, kept)
    again, _ = load_model(open_folder(folder), dtype=torch.float32)
    ids, mask = next(samples().batches(9))
    wanted = copy.deepcopy(compressed)
    for tensor in (*wanted.parameters(), *wanted.buffers()):
        if tensor.is_floating_point():
            tensor.data = tensor.data.to(getattr(torch, config.dtype)).float()
    with torch.no_grad():
        assert torch.equal(again(ids, mask_BS=mask), wanted(ids, mask_BS=mask))


@settings
def test_bytes_of_files_and_the_same_model_read_back(tmp_path: Path, name: str) -> None:
    check_files(tmp_path / "whole", name, 2**30)


def test_shards(tmp_path: Path) -> None:
    check_files(tmp_path / "shards", "static", 9_000)


@pytest.mark.sabotage
def test_sabotage_scales_along_the_wrong_axis(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    true = Int8Linear.stored

    def turned(self: Int8Linear, parts: int = 1) -> list[dict[str, torch.Tensor]]:
        wrong = torch.ones(1, self.in_features)
        return [own | {"weight_scale": wrong} for own in true(self, parts)]

    monkeypatch.setattr(Int8Linear, "stored", turned)
    with pytest.raises((AssertionError, ValueError)):
        check_files(tmp_path / "m", "static", 2**30)


@pytest.mark.sabotage
def test_sabotage_a_static_scale_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    true = weight_format.stored
    monkeypatch.setattr(
        weight_format,
        "stored",
        lambda *given: {key: own for key, own in true(*given).items() if not key.endswith("input_scale")},
    )
    with pytest.raises(AssertionError):
        check_memory("decoder", "static")
