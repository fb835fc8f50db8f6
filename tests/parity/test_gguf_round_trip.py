"""Checkpoints through GGUF files and back: floats bit for bit, quantized blocks as the gguf package has them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFReader
from gguf.quants import dequantize, quantize
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import gguf_models
from burnish.errors import UserError
from burnish.export import gguf as export
from burnish.export.gguf import quantized, save_gguf
from burnish.gguf_files.written import gguf_bytes
from burnish.load import gguf as load
from burnish.load.gguf import dequantized, open_gguf
from burnish.tables.gguf import READABLE, STORAGES, WRITTEN

kinds = pytest.mark.parametrize("kind", gguf_models.KINDS)
QUANTIZED = ("Q8_0", "Q4_0", "Q4_1")


def differs(kind: str, folder: Path, form: str = "F32") -> list[str]:
    """Names of the weights that come back as something other than those of the checkpoint, cast to the format."""
    _, checkpoint = gguf_models.model(kind, folder)
    save_gguf(checkpoint, folder / "m.gguf", form)
    back = open_gguf(folder / "m.gguf")
    assert back.tensors.keys() == checkpoint.tensors.keys()
    different = []
    for name, tensor in checkpoint.tensors.items():
        found, wanted = back.tensors[name].read(), tensor.read()
        assert str(found.dtype) == "torch." + back.tensors[name].format
        assert found.shape == back.tensors[name].shape
        if not torch.equal(found, wanted.to(found.dtype)):
            different.append(name)
    return different


@kinds
@pytest.mark.parametrize("form", ["F32", "F16", "BF16"])
def test_floats_come_back_bit_for_bit(kind, form, tmp_path):
    assert differs(kind, tmp_path, form) == []
    back = open_gguf(tmp_path / "m.gguf")
    formats = {t.format for t in back.tensors.values() if len(t.shape) > 1}
    assert {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}[form] in formats
    assert {t.format for t in back.tensors.values() if len(t.shape) == 1} == {"float32"}
    assert sum(t.bytes for t in back.tensors.values()) < (tmp_path / "m.gguf").stat().st_size
    assert back.tokenizer is not None
    assert back.tokenizer.template == gguf_models.TEMPLATE


@pytest.mark.sabotage
@pytest.mark.parametrize(
    ("kind", "broken"), [("llama", "q_proj"), ("mixtral", "k_proj"), ("llama with biases", "bias")]
)
def test_rows_left_as_llama_cpp_has_them_are_noticed(kind, broken, tmp_path, monkeypatch):
    assert differs(kind, tmp_path) == []
    monkeypatch.setattr(load, "unturned", lambda rows, heads: rows)
    assert any(broken in name for name in differs(kind, tmp_path))


@kinds
@pytest.mark.parametrize("form", QUANTIZED)
def test_blocks_are_those_of_the_gguf_package(kind, form, tmp_path):
    """Read back: exactly dequantize(quantize(w)) of the rows as the file has them, experts one by one."""
    _, checkpoint = gguf_models.model(kind, tmp_path)
    made = save_gguf(checkpoint, tmp_path / "m.gguf", form)
    back = open_gguf(tmp_path / "m.gguf")
    seen = set()
    for name, tensor in checkpoint.tensors.items():
        stored, wanted = back.tensors[name], tensor.read().numpy()
        found = stored.read().float().numpy()
        seen.add(stored.format)
        if stored.format.startswith("Q"):
            flip = name.endswith("weight") and any(part in name for part in (".c_attn.", ".c_proj.", ".c_fc."))
            rows = wanted.T if flip else wanted  # whole rows move in q and k, so their order does not matter here
            number = GGMLQuantizationType[stored.format]
            rounded = dequantize(quantize(np.ascontiguousarray(rows), number), number)
            wanted = rounded.T if flip else rounded
        elif stored.format == "float16":
            wanted = wanted.astype(np.float16).astype(np.float32)
        np.testing.assert_array_equal(found, wanted, err_msg=name)
    assert form in seen
    assert seen <= {form, "Q8_0", "float32"} | ({"float16"} if made.wider else set())


def test_a_row_that_fits_no_block_is_named_and_stands_in_half_precision(tmp_path):
    _, checkpoint = gguf_models.model("llama odd width", tmp_path)
    made = save_gguf(checkpoint, tmp_path / "m.gguf", "Q4_0")
    back = open_gguf(tmp_path / "m.gguf")
    assert set(made.wider) == {e for e in made.wider if e.startswith(("token_embd", "output", "blk."))}
    assert "blk.0.attn_q.weight" in made.wider
    assert back.tensors["model.layers.0.self_attn.q_proj.weight"].format == "float16"
    assert made.storages["F16"] == len(made.wider)


@pytest.mark.parametrize(
    ("form", "kind", "wanted"),
    [
        ("Q4_0", "llama", {"embed_tokens": "Q4_0", "lm_head": "Q8_0", "up_proj": "Q4_0"}),
        ("Q4_1", "llama tied", {"embed_tokens": "Q8_0", "up_proj": "Q4_1"}),
        ("Q8_0", "mixtral", {"embed_tokens": "Q8_0", "moe.gate": "float32", "experts.3.w2": "Q8_0"}),
        ("F16", "gpt2", {"wte": "float16", "wpe": "float32", "c_attn.weight": "float16", "c_attn.bias": "float32"}),
    ],
)
def test_what_is_stored_as_what(form, kind, wanted, tmp_path):
    """As llama.cpp's quantizer does it, but for the matrix of the scores in 4-bit files, which it puts in Q6_K."""
    _, checkpoint = gguf_models.model(kind, tmp_path)
    save_gguf(checkpoint, tmp_path / "m.gguf", form)
    back = open_gguf(tmp_path / "m.gguf")
    for part, storage in wanted.items():
        assert {t.format for name, t in back.tensors.items() if part in name} == {storage}, part


@kinds
@pytest.mark.parametrize("form", WRITTEN)
def test_the_size_is_known_before(kind, form, tmp_path):
    _, checkpoint = gguf_models.model(kind, tmp_path)
    for tokenizer in (checkpoint.tokenizer, None):
        bare = type(checkpoint)(checkpoint.where, checkpoint.format, checkpoint.config, checkpoint.tensors, tokenizer)
        made = save_gguf(bare, tmp_path / "m.gguf", form)
        assert (tmp_path / "m.gguf").stat().st_size == made.bytes == gguf_bytes(checkpoint.config, form, tokenizer)


@pytest.mark.sabotage
def test_a_forgotten_padding_is_noticed(tmp_path, monkeypatch):
    from burnish.gguf_files import written

    _, checkpoint = gguf_models.model("gpt2", tmp_path)
    made = save_gguf(checkpoint, tmp_path / "m.gguf", "Q4_0")
    assert made.bytes == gguf_bytes(checkpoint.config, "Q4_0", checkpoint.tokenizer)
    monkeypatch.setattr(written, "padded", lambda count: count)
    assert made.bytes != gguf_bytes(checkpoint.config, "Q4_0", checkpoint.tokenizer)


@kinds
def test_the_package_of_the_format_reads_ours(kind, tmp_path):
    _, checkpoint = gguf_models.model(kind, tmp_path)
    made = save_gguf(checkpoint, tmp_path / "m.gguf", "Q8_0")
    reader = GGUFReader(tmp_path / "m.gguf")
    assert {t.tensor_type.name: t.n_bytes for t in reader.tensors}.keys() == made.storages.keys()
    assert reader.fields["general.file_type"].contents() == 7
    back = open_gguf(tmp_path / "m.gguf")
    flat = {t.name: t for t in reader.tensors}
    embedding = next(t for name, t in back.tensors.items() if "embed_tokens" in name or "wte" in name)
    theirs = dequantize(flat["token_embd.weight"].data, flat["token_embd.weight"].tensor_type)
    np.testing.assert_array_equal(embedding.read().float().numpy(), theirs)


# Bounds on a block of 32 values x: what rounding to the nearest step allows, and what storing the scale in half precision
# adds. Steps: d = max|x| / 127 (Q8_0); d = x of the largest magnitude / -8 (Q4_0: values from -8 d to 7 d, so the end of
# the other sign is cut off by up to a whole step); d = (max - min) / 15 above min (Q4_1).
def bound(blocks: np.ndarray, form: str) -> np.ndarray:
    blocks = blocks.astype(np.float64)
    low, high, most = blocks.min(1), blocks.max(1), np.abs(blocks).max(1)
    step, levels, cut = {
        "Q8_0": (most / 127, 127, 0.5),
        "Q4_0": (most / 8, 8, 1.0),
        "Q4_1": ((high - low) / 15, 15, 0.5),
    }[form]
    half = np.abs(step.astype(np.float16).astype(np.float64) - step) * levels
    base = np.abs(low.astype(np.float16).astype(np.float64) - low) if form == "Q4_1" else 0
    return (cut * step + half + base) * (1 + 1e-6) + 1e-6 * most


values = st.floats(-60000, 60000, width=32, allow_subnormal=False) | st.floats(-2, 2, width=32, allow_subnormal=False)


@given(arrays(np.float32, (4, 32), elements=values))
@settings(max_examples=200, deadline=None)
@pytest.mark.parametrize("form", QUANTIZED)
def test_blocks_lose_no_more_than_their_bound(form, blocks):
    back = dequantized(quantized(blocks, form, "w").reshape(-1), form, blocks.shape)
    assert (np.abs(back.astype(np.float64) - blocks).max(1) <= bound(blocks, form)).all()


@pytest.mark.parametrize("form", QUANTIZED)
def test_a_dequantized_file_quantizes_to_the_same_bytes(form):
    """Weights of 2 million bell-shaped values, some blocks far from 0: not one byte changes."""
    weights = np.random.default_rng(0).standard_normal((1000, 2048)).astype(np.float32)
    weights[::7] += 3
    first = quantized(weights, form, "w")
    again = quantized(dequantized(first.reshape(-1), form, weights.shape), form, "w")
    np.testing.assert_array_equal(first, again)


@given(arrays(np.float32, (4, 32), elements=values))
@settings(max_examples=200, deadline=None)
@pytest.mark.parametrize("form", QUANTIZED)
def test_a_second_rounding_changes_no_weight(form, blocks):
    """Bytes may differ where a block is all zeros, whose scale has a sign. Q4_1 needs blocks that lie less than some
    thousand of their steps from zero, so that float32 tells the steps apart."""
    low, high = blocks.min(1), blocks.max(1)
    assume(form != "Q4_1" or ((high == low) | (high - low > np.abs(blocks).max(1) / 100)).all())
    once = dequantized(quantized(blocks, form, "w").reshape(-1), form, blocks.shape)
    np.testing.assert_array_equal(dequantized(quantized(once, form, "w").reshape(-1), form, blocks.shape), once)


@pytest.mark.parametrize("storage", [s for s in READABLE if s not in ("F32", "F16", "BF16")])
def test_every_readable_storage_is_read_as_the_package_reads_it(storage):
    kind = STORAGES[storage]
    raw = np.random.default_rng(1).integers(0, 60, size=(3, 2 * kind.bytes), dtype=np.uint8)
    wanted = dequantize(raw, GGMLQuantizationType[storage])
    found = dequantized(raw.reshape(-1), storage, (3, 2 * kind.block))
    np.testing.assert_array_equal(found, wanted)
    assert np.unique(found).size > 8


@pytest.mark.parametrize("values", [[1e5], [float("nan")], [float("inf")]])
@pytest.mark.parametrize("form", ["F16", *QUANTIZED])
def test_what_half_precision_cannot_hold_is_refused(form, values):
    weights = np.zeros((1, 32), np.float32)
    weights[0, 0] = values[0]
    with pytest.raises(UserError, match=r"model\.q holds .*, which .* cannot hold"):
        quantized(weights, form, "model.q")


def test_nothing_half_written_is_left(tmp_path, monkeypatch):
    _, checkpoint = gguf_models.model("llama", tmp_path)
    before = sorted(p.name for p in tmp_path.iterdir())

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(export, "quantized", full)
    with pytest.raises(UserError, match=r"m\.gguf: cannot be written \(No space left"):
        save_gguf(checkpoint, tmp_path / "m.gguf", "Q8_0")
    assert sorted(p.name for p in tmp_path.iterdir()) == before
