"""The law for exported files: predicted bytes equal the bytes on disk, and the tensors are those predicted."""

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open

from burnish.config import ModelConfig
from burnish.export.safetensors import save_folder
from burnish.layout import shards, weight_bytes
from burnish.models.decoder import Decoder
from burnish.tensors import file_shapes


@pytest.mark.parametrize("write_tied", [False, True])
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("limit", [2**30, 30_000, 100])
def test_bytes_of_the_weight_files(tmp_path: Path, dtype: str, tied: bool, write_tied: bool, limit: int) -> None:
    config = ModelConfig(vocab=331, hidden=40, ffn=77, layers=11, heads=5, kv_heads=1, tied=tied)
    save_folder(Decoder(config), config, tmp_path / "m", dtype=dtype, write_tied=write_tied, shard_bytes=limit)
    files = list((tmp_path / "m").glob("*.safetensors"))
    assert sum(file.stat().st_size for file in files) == weight_bytes(config, dtype, write_tied, limit)
    found = {}
    for file in files:
        with safe_open(file, "pt") as opened:
            found |= {name: tuple(opened.get_slice(name).get_shape()) for name in opened.keys()}  # noqa: SIM118
    assert found == file_shapes(config, write_tied)


@given(st.lists(st.integers(0, 50), min_size=1), st.integers(1, 60))
@settings(max_examples=200)
def test_shards_keep_order_and_limit(sizes: list[int], limit: int) -> None:
    named = {f"t{i}": size for i, size in enumerate(sizes)}
    parts = shards(named, limit)
    assert [name for part in parts for name in part] == list(named)
    for part, after in zip(parts, [*parts[1:], []], strict=True):
        total = sum(named[name] for name in part)
        assert total <= limit or len(part) == 1
        assert not after or total + named[after[0]] > limit  # no file could have taken one more


def test_torch_and_layout_agree_on_every_shape() -> None:
    config = ModelConfig(vocab=50, hidden=24, ffn=30, layers=2, heads=3, kv_heads=3, head_dim=10, tied=False)
    with torch.device("meta"):
        model = Decoder(config)
    assert sorted(tuple(p.shape) for p in model.parameters()) == sorted(file_shapes(config).values())
    assert sum(p.numel() for p in model.parameters()) == config.parameters
