"""The header of a GGUF file whose bytes are anything: a checkpoint or one line, never another error, never long."""

from __future__ import annotations

import struct
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gguf_models
from burnish.errors import UserError
from burnish.export.gguf import save_gguf
from burnish.gguf_files.header import Header, read_header
from burnish.load.checkpoint import Checkpoint
from burnish.load.gguf import open_gguf


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
