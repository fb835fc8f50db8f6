"""GGUF files that cannot be read: one line with the file and the key or tensor, whatever the bytes."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest

import gguf_models
from burnish.errors import UserError
from burnish.export.gguf import save_gguf
from burnish.load.checkpoint import TokenizerFiles
from burnish.load.gguf import open_gguf

KEY = "tokenizer.ggml."


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    folder = tmp_path_factory.mktemp("good")
    _, checkpoint = gguf_models.model("llama", folder)
    save_gguf(checkpoint, folder / "m.gguf", "Q4_0")
    return folder / "m.gguf"


def refused(path, *parts: str) -> None:
    began = time.monotonic()
    with pytest.raises(UserError) as caught:
        open_gguf(path)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 400
    assert time.monotonic() - began < 5
    for part in (str(path), *parts):
        assert part in message


def test_no_file_and_no_regular_file(tmp_path):
    refused(tmp_path / "absent.gguf", "no such file")
    (tmp_path / "empty.gguf").touch()
    refused(tmp_path / "empty.gguf", "not a GGUF file")
    (tmp_path / "folder.gguf").mkdir()
    refused(tmp_path / "folder.gguf", "cannot be read")


def edited(good, path, changes: dict, tensors: dict | None = None):
    """The good file with other metadata (None: without the key) and tensors, written by the gguf package."""
    from gguf import GGUFReader

    reader = GGUFReader(good)
    fields = {}
    for key, found in reader.fields.items():
        if not key.startswith("GGUF.") and key != "general.architecture":
            kind = (
                found.types[-1].name.lower().replace("uint32", "u32").replace("int32", "i32").replace("float32", "f32")
            )
            fields[key] = (f"[{kind}]" if len(found.types) > 1 else kind, found.contents())
    arch = changes.pop("general.architecture", "llama")
    for key, value in changes.items():
        fields[key] = value
    kept = {t.name: np.array(t.data) for t in reader.tensors if t.tensor_type.name == "F32"}
    from gguf.quants import dequantize

    kept |= {t.name: dequantize(t.data, t.tensor_type) for t in reader.tensors if t.name not in kept}
    kept = {name: value for name, value in (kept | (tensors or {})).items() if value is not None}
    rows = [(key, *value) for key, value in fields.items() if value is not None]
    return gguf_models.written(path, rows, kept, arch)


def test_the_edited_file_is_good_when_nothing_is_edited(good, tmp_path):
    found, wanted = open_gguf(edited(good, tmp_path / "m.gguf", {})), open_gguf(good)
    assert found.config == wanted.config
    assert all(np.array_equal(found.tensors[n].read(), t.read().float()) for n, t in wanted.tensors.items())


Q = "blk.1.attn_q.weight"


@pytest.mark.parametrize(
    ("changes", "tensors", "parts"),
    [
        ({"llama.block_count": None}, {}, ["llama.block_count is missing"]),
        ({"llama.block_count": ("u32", 2**31 - 2)}, {}, ["llama.block_count is 2147483646", "tensors"]),
        ({"llama.block_count": ("u32", 3)}, {}, ["blk.2.attn_norm.weight is missing"]),
        ({"llama.block_count": ("u32", 1)}, {}, ["unexpected tensor blk.1."]),
        ({"llama.block_count": ("string", "two")}, {}, ["llama.block_count is 'two'"]),
        ({"llama.block_count": ("bool", True)}, {}, ["llama.block_count is True"]),
        ({"llama.attention.head_count": ("u32", 0)}, {}, ["llama.attention.head_count is 0"]),
        ({"llama.attention.head_count_kv": ("u32", 3)}, {}, ["4 heads, 3 of keys"]),
        ({"llama.attention.head_count_kv": ("[i32]", [2, 2])}, {}, ["head_count_kv is [2, 2]"]),
        ({"llama.attention.key_length": ("u32", 32)}, {}, ["rope.dimension_count is 16; 32"]),
        ({"llama.rope.dimension_count": ("u32", 8)}, {}, ["rope.dimension_count is 8; 16"]),
        ({"llama.embedding_length": ("u32", 128)}, {}, ["token_embd.weight has the shape (300, 64)", "(300, 128)"]),
        ({"llama.vocab_size": ("u32", 299)}, {}, ["llama.vocab_size is 299", "300 rows"]),
        ({"llama.attention.layer_norm_rms_epsilon": ("f32", float("nan"))}, {}, ["layer_norm_rms_epsilon is nan"]),
        ({"llama.rope.freq_base": ("f32", -1.0)}, {}, ["llama.rope.freq_base is -1.0"]),
        ({"llama.rope.scaling.type": ("string", "longrope")}, {}, ["'longrope'", "none, linear and yarn"]),
        ({"llama.rope.scaling.type": ("string", "linear"), "llama.rope.scaling.factor": ("f32", -1.0)}, {}, ["-1.0"]),
        ({"llama.rope.scaling.attn_factor": ("f32", 2.0)}, {}, ["rope.scaling.attn_factor is 2.0"]),
        ({"llama.attention.clamp_kqv": ("f32", 8.0)}, {}, ["llama.attention.clamp_kqv is 8.0"]),
        ({"llama.expert_gating_func": ("u32", 2)}, {}, ["llama.expert_gating_func is 2"]),
        ({"llama.logit_scale": ("f32", 2.0)}, {}, ["llama.logit_scale is 2.0"]),
        ({}, {"rope_freqs.weight": np.full(8, 0.5, np.float32)}, ["rope_freqs.weight", "llama3"]),
        ({}, {"rope_freqs.weight": np.ones(9, np.float32)}, ["rope_freqs.weight", "(9,)", "(8,)"]),
        ({}, {"rope_freqs.weight": np.full(8, np.nan, np.float32)}, ["rope_freqs.weight"]),
        (
            {"llama.expert_count": ("u32", 8), "llama.expert_used_count": ("u32", 2)},
            {},
            ["ffn_gate_inp.weight is missing"],
        ),
        ({}, {Q: np.zeros((64, 63), np.float32)}, [Q, "(64, 63)", "(64, 64)"]),
        ({}, {Q: np.zeros((64, 64), np.int8)}, [Q, "I8", "Q4_0, Q4_1"]),
        ({}, {Q: None}, [f"{Q} is missing"]),
        ({}, {"token_embd.weight": None}, ["token_embd.weight is missing"]),
        ({}, {"blk.1.attn_q.bias": np.zeros(64, np.float32)}, ["unexpected tensor blk.1.attn_q.bias"]),
        ({}, {"blk.0.attn_q.bias": np.zeros(64, np.float32)}, ["blk.0.attn_k.bias is missing"]),
        ({"general.architecture": "gpt2"}, {}, ["gpt2.context_length is missing"]),
        ({KEY + "model": ("string", "bert")}, {}, ["tokenizer.ggml.model is 'bert'", "gpt2 and llama"]),
        ({KEY + "pre": ("string", "tekken")}, {}, ["tokenizer.ggml.pre is 'tekken'", "llama-bpe"]),
        ({KEY + "tokens": None}, {}, ["tokenizer.ggml.tokens is missing"]),
        ({KEY + "tokens": ("[i32]", [1, 2])}, {}, ["tokenizer.ggml.tokens is no list of str"]),
        ({KEY + "tokens": ("[string]", ["a"] * 301)}, {}, ["has 301 tokens", "300 rows"]),
        ({KEY + "tokens": ("[string]", ["a"] * 300)}, {}, ["'a' twice"]),
        ({KEY + "token_type": ("[i32]", [1])}, {}, ["token_type has 1 entries", "300"]),
        ({KEY + "token_type": ("[i32]", [9] * 300)}, {}, ["token_type has 9"]),
        ({KEY + "merges": ("[string]", ["ab"])}, {}, ["merges has 'ab' at 0"]),
        ({KEY + "merges": ("[string]", ["t zzz"])}, {}, ["'zzz' is no token"]),
        ({KEY + "eos_token_id": ("u32", 300)}, {}, ["eos_token_id is 300", "0 to 299"]),
        ({KEY + "add_bos_token": ("u32", 1)}, {}, ["add_bos_token is 1; true or false"]),
        ({"tokenizer.chat_template": ("u32", 1)}, {}, ["tokenizer.chat_template is no text"]),
        ({KEY + "model": ("string", "llama")}, {}, ["tokenizer.ggml.scores is missing"]),
    ],
)
def test_files_that_do_not_fit_together(changes, tensors, parts, good, tmp_path):
    refused(edited(good, tmp_path / "m.gguf", dict(changes), tensors), *parts)


@pytest.mark.parametrize("kind", ["qwen2", "gpt2"])
def test_what_an_architecture_has_no_use_for_is_refused(kind, tmp_path):
    _, checkpoint = gguf_models.model(kind, tmp_path)
    save_gguf(checkpoint, tmp_path / "m.gguf", "F32")
    width = 8 if kind == "qwen2" else 4
    changes = {"general.architecture": kind}
    tensors = {"rope_freqs.weight": np.ones(width, np.float32)}
    refused(
        edited(tmp_path / "m.gguf", tmp_path / "f.gguf", dict(changes), tensors), "unexpected tensor rope_freqs.weight"
    )
    changes[f"{kind}.attention.sliding_window"] = ("u32", 64)
    refused(edited(tmp_path / "m.gguf", tmp_path / "w.gguf", changes), "sliding_window is 64; none is read")


def test_an_output_that_repeats_the_embedding_of_gpt2_is_tied(tmp_path):
    """As llama.cpp's converter used to write it; another matrix there is a head of its own."""
    _, checkpoint = gguf_models.model("gpt2", tmp_path)
    save_gguf(checkpoint, tmp_path / "m.gguf", "F32")
    embedding = checkpoint.tensors["transformer.wte.weight"].read().numpy()
    twice = edited(
        tmp_path / "m.gguf", tmp_path / "t.gguf", {"general.architecture": "gpt2"}, {"output.weight": embedding}
    )
    found = open_gguf(twice)
    assert found.config["tie_word_embeddings"]
    assert "lm_head.weight" not in found.tensors
    other = {"output.weight": embedding + 1}
    found = open_gguf(edited(tmp_path / "m.gguf", tmp_path / "o.gguf", {"general.architecture": "gpt2"}, other))
    assert not found.config["tie_word_embeddings"]
    assert np.array_equal(found.tensors["lm_head.weight"].read(), embedding + 1)


def test_a_long_piece_takes_no_long_time(good, tmp_path):
    tokens = [f"[PAD{i}]" for i in range(300)]
    tokens[7] = "ab" * 100_000
    pieces = {KEY + "model": ("string", "llama"), KEY + "tokens": ("[string]", tokens), KEY + "merges": None}
    pieces[KEY + "scores"] = ("[f32]", [0.0] * 300)
    refused(edited(good, tmp_path / "m.gguf", pieces), "a piece of 200000 characters")


def test_a_file_cut_off_after_it_was_opened(good, tmp_path):
    path = tmp_path / "m.gguf"
    path.write_bytes(good.read_bytes())
    tensors = open_gguf(path).tensors
    path.write_bytes(good.read_bytes()[:-20_000])
    with pytest.raises(UserError, match=r"m\.gguf: not a whole GGUF file: .* was cut off"):
        [t.read() for t in tensors.values()]


@pytest.mark.parametrize(
    ("config", "tokenizer", "parts"),
    [
        ({"model_type": "mamba"}, None, ["'mamba'", "mixtral, mistral, llama, qwen2"]),
        ({"num_hidden_layers": None}, None, ["num_hidden_layers is None"]),
        ({"hidden_act": "gelu"}, None, ["hidden_act is 'gelu'", "'silu'"]),
        ({"rms_norm_eps": "small"}, None, ["rms_norm_eps is small"]),
        (
            {"rope_scaling": {"type": "dynamic", "factor": 2.0}, "rope_parameters": None},
            None,
            ["'dynamic'", "linear, yarn"],
        ),
        (
            {"rope_scaling": {"rope_type": "llama3", "factor": 2.0}, "rope_parameters": None},
            None,
            ["low_freq_factor is None"],
        ),
        ({"layer_types": ["sliding_attention"] * 2}, None, ["layer_types", "no window"]),
        ({"intermediate_size": 128}, None, ["mlp.gate_proj.weight", "(96, 64)", "(128, 64)"]),
        ({"num_hidden_layers": 3}, None, ["model.layers.2", "is missing"]),
        ({"num_hidden_layers": 1}, None, ["unexpected model.layers.1."]),
        ({}, "", ["tokenizer.json is not one"]),
        ({}, '{"model": {"type": "WordPiece", "vocab": {"a": 0}}}', ["'WordPiece'", "BPE"]),
        ({}, '{"model": {"vocab": {"a": 300}}}', ["has 301 tokens, the model 300"]),
        ({}, '{"model": {"vocab": {"a": 0}}}', ["treats text by nothing"]),
    ],
)
def test_checkpoints_that_have_no_gguf_file(config, tokenizer, parts, tmp_path):
    _, checkpoint = gguf_models.model("llama", tmp_path)
    files = checkpoint.tokenizer if tokenizer is None else TokenizerFiles(tokenizer)
    odd = replace(checkpoint, config=dict(checkpoint.config) | config, tokenizer=files)
    with pytest.raises(UserError) as caught:
        save_gguf(odd, tmp_path / "m.gguf", "Q8_0")
    assert not (tmp_path / "m.gguf").exists()
    assert "\n" not in str(caught.value)
    for part in (str(tmp_path), *parts):
        assert part in str(caught.value)


def test_an_unknown_format_is_named(tmp_path):
    _, checkpoint = gguf_models.model("llama", tmp_path)
    with pytest.raises(UserError, match="format 'q4_0': did you mean 'Q4_0'"):
        save_gguf(checkpoint, tmp_path / "m.gguf", "q4_0")
