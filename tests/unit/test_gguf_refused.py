"""GGUF files that cannot be read: one line with the file and the key or tensor, whatever the bytes."""

from __future__ import annotations

import struct
import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gguf_models
from burnish.errors import UserError
from burnish.export.gguf import save_gguf
from burnish.gguf_files.header import Header, read_header
from burnish.load.checkpoint import Checkpoint, TokenizerFiles
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


# A file by hand: each piece as the format has it, so that each can be wrong.
def text(said: str | bytes) -> bytes:
    raw = said.encode() if isinstance(said, str) else said
    return struct.pack("<Q", len(raw)) + raw


def field(key: str | bytes, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def tensor(name: str | bytes, shape: tuple[int, ...], kind: int = 0, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


def by_hand(path, fields=(), tensors=(), data: bytes = b"", **other: object):
    head = struct.pack(
        "<4sIQQ",
        other.get("magic", b"GGUF"),
        other.get("version", 3),
        other.get("tensor_count", len(tensors)),
        other.get("field_count", len(fields)),
    )
    body = head + b"".join(fields) + b"".join(tensors)
    path.write_bytes(body + bytes(-len(body) % 32) + data)
    return path


ARCH = field("general.architecture", 8, text("llama"))


@pytest.mark.parametrize(
    ("how", "parts"),
    [
        ({"magic": b"GGML"}, ["does not begin with GGUF"]),
        ({"version": 1}, ["GGUF version 1; 2 and 3 are read"]),
        ({"version": 4}, ["GGUF version 4"]),
        ({"version": 3 << 24}, ["big-endian"]),
        ({"tensor_count": 1 << 60}, ["the list of tensors has 1152921504606846976 entries"]),
        ({"field_count": 1 << 60}, ["the metadata has 1152921504606846976 entries"]),
        ({"field_count": 2}, ["the metadata"]),
        ({"fields": [ARCH, ARCH]}, ["general.architecture stands there twice"]),
        ({"fields": [field(b"\xff\xfe", 8, text("x"))]}, ["name that is no text"]),
        ({"fields": [field("a\nb", 8, text("x"))]}, ["name that is no text"]),
        ({"fields": [field("", 8, text("x"))]}, ["name of 0 bytes"]),
        ({"fields": [field("k", 8, text(b"\xff"))]}, ["k is not UTF-8"]),
        ({"fields": [field("k", 8, struct.pack("<Q", 1 << 63))]}, ["k needs 9223372036854775808 bytes"]),
        ({"fields": [field("k", 13, b"")]}, ["k is of an unknown type 13"]),
        ({"fields": [field("k", 9, struct.pack("<IQ", 4, 1 << 62))]}, ["k has 4611686018427387904 entries"]),
        ({"fields": [field("k", 9, struct.pack("<IQ", 8, 1 << 62))]}, ["k has 4611686018427387904 entries"]),
        ({"fields": [field("k", 9, struct.pack("<IQ", 9, 1))]}, ["k is an array of type 9"]),
        ({"fields": [field("general.alignment", 4, struct.pack("<I", 24))]}, ["general.alignment is 24"]),
        ({"fields": [field("general.alignment", 8, text("a"))]}, ["general.alignment is 'a'"]),
        ({"fields": [], "tensors": []}, ["general.architecture is missing", "llama, qwen2"]),
        ({"fields": [field("general.architecture", 8, text("mamba"))]}, ["'mamba'", "llama, qwen2, qwen3"]),
        ({"fields": [ARCH, field("split.count", 2, b"\x03\0")]}, ["split.count", "join"]),
        ({"fields": [ARCH]}, ["llama.context_length is missing"]),
        ({"tensors": [tensor("t", (1 << 62, 1 << 62))]}, ["t ends at byte"]),
        ({"tensors": [tensor("t", (4,), offset=1 << 62)]}, ["t ends at byte"]),
        ({"tensors": [tensor("t", (4,), offset=4)]}, ["t begins at 4"]),
        ({"tensors": [tensor("t", ())]}, ["t has 0 dimensions"]),
        ({"tensors": [tensor("t", (1,) * 5)]}, ["t has 5 dimensions"]),
        ({"tensors": [tensor("t", (0, 4))]}, ["t has the shape (4, 0)"]),
        ({"tensors": [tensor("t", (33,), 2)]}, ["t has rows of 33", "Q4_0", "32"]),
        ({"tensors": [tensor("t", (4,), 99)]}, ["t is stored as type 99", "Q6_K"]),
        ({"tensors": [tensor(b"\xff", (4,))]}, ["name that is no text"]),
        ({"tensors": [tensor("t" * 65, (4,))]}, ["name of 65 bytes"]),
        ({"tensors": [tensor("t", (4,))] * 2, "data": bytes(99)}, ["the tensor t stands there twice"]),
        ({"tensors": [tensor("t", (8,)), tensor("u", (8,))], "data": bytes(99)}, ["u lies where t does"]),
    ],
)
def test_headers_that_lie(how, parts, tmp_path):
    refused(by_hand(tmp_path / "m.gguf", **how), *parts)


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


def a_checkpoint_or_a_refusal(path, raw: bytes) -> None:
    path.write_bytes(raw)
    try:
        found = open_gguf(path)
        assert isinstance(found, Checkpoint)
        assert all(t.read().shape == t.shape for t in found.tensors.values())
    except UserError as error:
        said = str(error)
    else:
        return
    assert str(path) in said
    assert "\n" not in said


fuzz = settings(max_examples=150, deadline=5000, suppress_health_check=[HealthCheck.function_scoped_fixture])


@fuzz
@given(share=st.floats(0, 1))
def test_a_file_truncated_anywhere_is_refused(share, good, tmp_path):
    whole = good.read_bytes()
    (tmp_path / "m.gguf").write_bytes(whole[: int(share * (len(whole) - 32))])
    refused(tmp_path / "m.gguf")


@fuzz
@given(data=st.data())
def test_flipped_bytes_give_a_checkpoint_or_a_refusal(data, good, tmp_path):
    raw = bytearray(good.read_bytes())
    header = min(t.offset for t in read_header(good).tensors.values())
    ends = st.integers(0, 2000) | st.integers(header - 2500, header - 1) | st.integers(0, len(raw) - 1)
    for place in data.draw(st.lists(ends, min_size=1, max_size=4)):
        raw[place] = data.draw(st.integers(0, 255))
    a_checkpoint_or_a_refusal(tmp_path / "m.gguf", bytes(raw))


@fuzz
@given(data=st.data())
def test_numbers_put_in_anywhere_give_a_checkpoint_or_a_refusal(data, good, tmp_path):
    raw = bytearray(good.read_bytes())
    numbers = st.sampled_from([0, 1, 2, 8, 9, 255, 2**16, 2**31 - 1, 2**32 - 1, 2**60, 2**63, 2**64 - 1])
    header = min(t.offset for t in read_header(good).tensors.values())
    place, number = data.draw(st.integers(4, header)), data.draw(numbers)
    raw[place : place + 8] = struct.pack("<Q", number)
    a_checkpoint_or_a_refusal(tmp_path / "m.gguf", bytes(raw))


@fuzz
@given(raw=st.binary(max_size=300))
def test_any_bytes_after_the_magic_are_refused(raw, tmp_path):
    (tmp_path / "m.gguf").write_bytes(b"GGUF\x03\0\0\0" + raw)
    refused(tmp_path / "m.gguf")


def test_the_header_is_the_packages_header(good):
    """An independent reader of the format finds the same values and places."""
    from gguf import GGUFReader

    ours, theirs = read_header(good), GGUFReader(good)
    assert ours.metadata == {k: f.contents() for k, f in theirs.fields.items() if not k.startswith("GGUF.")}
    assert [
        (t.name, tuple(map(int, t.shape))[::-1], t.tensor_type.name, t.data_offset, t.n_bytes) for t in theirs.tensors
    ] == [(t.name, t.shape, t.storage, t.offset, t.bytes) for t in ours.tensors.values()]
    assert isinstance(ours, Header)


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
    with pytest.raises(UserError, match=r"format 'Q4': .*Q4_0"):
        save_gguf(checkpoint, tmp_path / "m.gguf", "Q4")
