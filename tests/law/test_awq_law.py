"""The law for weights of 4 bits: the bytes of files, headers included, and of the model in memory are those predicted."""

from __future__ import annotations

from math import prod
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from awq_models import FAMILIES, IN_FILES, config_of, decoder
from burnish import weight_format
from burnish.describe import Shapes, describe
from burnish.export.compressed_tensors import save_compressed
from burnish.mesh import Mesh
from burnish.models.decoder import Decoder
from burnish.techniques import awq
from burnish.weight_format import TYPES, file_bytes, file_tensors
from burnish.work import fold

KINDS = {
    "groups": {"group": 32},
    "zero points": {"group": 32, "symmetric": False, "dtype": "bfloat16"},
    "rows": {"group": -1, "dtype": "float32"},
    "rows, zero points": {"group": -1, "symmetric": False},
    "some kept": {"group": 32, "keep": ("mlp.down", "layers.1.attention.*")},
}
kinds = pytest.mark.parametrize("kind", KINDS)


def config_for(kind: str) -> awq.Config:
    return awq.Config.model_validate({"method": "rtn"} | KINDS[kind])


def held(model: Decoder) -> int:
    """Bytes of every tensor of a model, a tied one once."""
    return sum({tensor.data_ptr(): tensor.nbytes for tensor in (*model.parameters(), *model.buffers())}.values())


def predicted_and_held(name: str, kind: str) -> tuple[dict[object, int], dict[object, int]]:
    config, model = config_for(kind), decoder(name)
    work = awq.predict(config, describe(config_of(name), Shapes(rows=2, seq=8)), Mesh())
    states = {key: size for key, size in fold(work).items() if key[0] in ("parameter", "gradient", "optimizer")}
    awq.apply(config, model, Mesh())
    return states, {("parameter", "", "", ""): held(model)}


@kinds
@pytest.mark.parametrize("name", FAMILIES)
def test_bytes_in_memory(name: str, kind: str) -> None:
    """Parameters as predicted, and neither gradients nor an optimizer's state."""
    predicted, found = predicted_and_held(name, kind)
    assert predicted == found


def kept_of(name: str, config: awq.Config) -> frozenset[str]:
    modules = [module for link in weight_format.links(config_of(name)) if (module := weight_format.module_of(link))]
    return frozenset(module for module in modules if weight_format.fits(module, config.keep))


def files_differ(name: str, kind: str, limit: int, folder: Path) -> bool:
    config, model = config_for(kind), decoder(name)
    awq.apply(config, model, Mesh())
    save_compressed(model, config_of(name), folder / "m", shard_bytes=limit)
    kept, files = kept_of(name, config), list((folder / "m").glob("*.safetensors"))
    found = {}
    for file in files:
        with safe_open(file, "pt") as opened:
            for own in opened.keys():  # noqa: SIM118
                part = opened.get_slice(own)
                found[own] = part.get_dtype(), tuple(part.get_shape())
    wanted = {
        own: (TYPES[dtype][0], shape)
        for own, (dtype, shape) in file_tensors(config_of(name), config.scheme, kept).items()
    }
    size = sum(file.stat().st_size for file in files)
    return found != wanted or size != file_bytes(config_of(name), config.scheme, limit, kept)


@kinds
@pytest.mark.parametrize("name", IN_FILES)
@pytest.mark.parametrize("limit", [2**40, 9000])
def test_bytes_of_files(name: str, kind: str, limit: int, tmp_path: Path) -> None:
    assert not files_differ(name, kind, limit, tmp_path)


def test_four_bits_are_an_eighth_of_float32() -> None:
    """Of a layer's matrices: 4 bits, and one scale of 16 bits a group."""
    own = awq.Config(group=64).scheme
    shape = (576, 1536)
    assert weight_format.held_bytes(own, shape) == prod(shape) * (4 + 16 / 64) / 8


@pytest.mark.sabotage
def test_a_zero_point_that_is_not_predicted_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not files_differ("llama", "zero points", 2**40, tmp_path)
    right = weight_format.stored

    def wrong(scheme: object, name: str, shape: tuple[int, ...]) -> dict:
        return {key: own for key, own in right(scheme, name, shape).items() if not key.endswith("zero_point")}

    monkeypatch.setattr(weight_format, "stored", wrong)
    assert files_differ("llama", "zero points", 2**40, tmp_path)
    predicted, found = predicted_and_held("llama", "zero points")
    assert predicted != found


@pytest.mark.sabotage
def test_a_shape_left_out_of_the_header_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not files_differ("qwen2", "groups", 9000, tmp_path)
    monkeypatch.setitem(TYPES, "int64", ("I64", 4))
    assert files_differ("qwen2", "groups", 9000, tmp_path)


def test_weights_are_integers_and_nothing_is_trained() -> None:
    model = decoder("qwen2")
    awq.apply(config_for("groups"), model, Mesh())
    assert model.layers[0].mlp.up.weight_packed.dtype == torch.int32
    assert not any(p.requires_grad for p in model.layers[0].mlp.up.parameters())
