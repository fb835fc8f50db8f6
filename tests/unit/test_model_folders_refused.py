"""Model folders that lie, lead elsewhere or contradict themselves: one line with the file and the key."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from small_folder import made_folder, refused, sharded, weights

from burnish.errors import UserError
from burnish.load import safetensors_file
from burnish.load.folder import open_folder


@pytest.fixture
def folder(tmp_path):
    return made_folder(tmp_path / "m")


def write_header(file: Path, header: object, data: bytes = b"") -> None:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + data)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json", "generation_config.json"])
def test_a_link_that_leaves_the_folder(folder, tmp_path, name):
    (folder / name).rename(tmp_path / "private")
    (folder / name).symlink_to("../private")
    refused(folder, name, "leaves the folder", str(tmp_path / "private"))
    (folder / name).unlink()
    (tmp_path / "private").rename(folder / "inside")
    (folder / name).symlink_to("inside")
    open_folder(folder)


def test_pipes_folders_and_loops_are_not_opened(folder):
    for make, said in (
        (lambda path: os.mkfifo(path), "no regular file"),
        (lambda path: path.mkdir(), "no regular file"),
        (lambda path: path.symlink_to(path.name), "model.safetensors"),
    ):
        place = folder / "model.safetensors"
        place.rmdir() if place.is_dir() else place.unlink()
        make(place)
        refused(folder, "model.safetensors", said)


SETTINGS = [
    ("", "JSON"),
    ("[]", "found list"),
    ("3", "found int"),
    ('{"a": 1, "a": 2}', "'a' stands twice"),
    ('{"x": {"a": 1, "a": 2}}', "'a' stands twice"),
    ('{"a": ' * 100 + "1" + "}" * 100, "nested deeper"),
    ("[" * 200_000, "nested deeper"),
    ('{"a": ' + "9" * 5000 + "}", "JSON"),
    ('{"a": "\\ud800"}', "surrogate"),
    ('{"\\udfff": 1}', "surrogate"),
    (b'{"a": "\xff"}', "UTF-8"),
    (b"\xff\xfe{\x00}\x00", "config.json"),
    ('{"a": 1', "JSON"),
    ('{"a": "' + "x" * 2**24 + '"}', "16.0"),
]


@pytest.mark.parametrize(("content", "said"), SETTINGS, ids=range(len(SETTINGS)))
@pytest.mark.parametrize("name", ["config.json", "generation_config.json", "tokenizer_config.json"])
def test_settings_that_are_none(folder, name, content, said):
    (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
    refused(folder, name, said.replace("config.json", name))


def test_other_texts_that_are_none(folder):
    (folder / "chat_template.jinja").write_bytes(b"\xff")
    refused(folder, "chat_template.jinja", "UTF-8")
    (folder / "tokenizer.json").write_bytes(b"\xff")
    refused(folder, "tokenizer.json", "UTF-8")


ENTRY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
HEADERS = [
    ({}, b"", "holds no tensor"),
    ([], b"", "found list"),
    (b"{", b"", "JSON"),
    (b"\xff\xff", b"", "UTF-8"),
    ({"a": ENTRY}, bytes(7), "it has"),
    ({"a": ENTRY}, bytes(9), "it has"),
    ({"a": ENTRY | {"shape": [3]}}, bytes(8), "a [3] of F32 does not fill the 8 bytes"),
    ({"a": ENTRY | {"shape": [-2]}}, bytes(8), "shape of a"),
    ({"a": ENTRY | {"shape": [True, 2]}}, bytes(8), "shape of a"),
    ({"a": ENTRY | {"shape": [2.0]}}, bytes(8), "shape of a"),
    ({"a": ENTRY | {"shape": 2}}, bytes(8), "shape of a"),
    ({"a": ENTRY | {"shape": [2**40, 2**40, 0], "data_offsets": [0, 0]}}, b"", "shape of a"),
    ({"a": ENTRY | {"data_offsets": [0, -8]}}, bytes(8), "data_offsets of a"),
    ({"a": ENTRY | {"data_offsets": [8, 0]}}, bytes(8), "does not fill"),
    ({"a": ENTRY | {"data_offsets": [0, 8, 8]}}, bytes(8), "data_offsets of a"),
    ({"a": ENTRY | {"data_offsets": [8, 16]}}, bytes(16), "a begins"),
    ({"a": ENTRY, "b": ENTRY}, bytes(8), "begins"),
    ({"a": ENTRY, "b": ENTRY | {"data_offsets": [4, 12]}}, bytes(12), "begins"),
    ({"a": ENTRY | {"dtype": "Q4_1"}}, bytes(8), "'Q4_1'; known: F64"),
    ({"a": ENTRY | {"dtype": ["F32"]}}, bytes(8), "known: F64"),
    ({"a": ENTRY | {"dtype": "F4", "shape": [15]}}, bytes(8), "does not fill"),
    ({"a": ENTRY | {"more": 1}}, bytes(8), "a has not exactly"),
    ({"a": 3}, b"", "a has not exactly"),
    ({"": ENTRY}, bytes(8), "names a tensor ''"),
    ({"a\nb": ENTRY}, bytes(8), "names a tensor 'a\\nb'"),
    ({"a\x1b[31m": ENTRY}, bytes(8), "printable"),
    ({"a\u202eb": ENTRY}, bytes(8), "printable"),
    (b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"a":{}}', bytes(8), "'a' stands twice"),
]


@pytest.mark.parametrize(("header", "data", "said"), HEADERS, ids=range(len(HEADERS)))
def test_headers_that_lie(folder, header, data, said):
    write_header(folder / "model.safetensors", header, data)
    refused(folder, str(folder / "model.safetensors"), said)


@pytest.mark.parametrize("length", [2**63, 2**64 - 1, 100_000_001, 5000])
def test_headers_of_absurd_size(folder, length):
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", length) + b"{}")
    refused(folder, "model.safetensors", "not a whole safetensors file", "header")


UNREAD = [("I64", "int64", 1), ("F8_E4M3", "float8_e4m3fn", 8), ("BOOL", "bool", 8), ("C64", "complex64", 1)]


@pytest.mark.parametrize(("kind", "name", "count"), [*UNREAD, ("U8", "uint8", 8), ("F4", "float4_e2m1", 16)])
def test_types_that_are_listed_but_not_read(folder, kind, name, count):
    write_header(folder / "model.safetensors", {"x": ENTRY | {"dtype": kind, "shape": [count]}}, bytes(8))
    assert open_folder(folder).tensors["x"].format == name
    refused(folder, "model.safetensors", f"x is {name}", "float64, float32, float16, bfloat16")


def test_names_in_other_scripts_and_sizes_of_zero(folder):
    save_file({"größe.重み": torch.ones(2), "none": torch.ones(3, 0)}, folder / "model.safetensors")
    found = open_folder(folder).tensors
    assert found["größe.重み"].read().tolist() == [1, 1]
    assert found["none"].read().shape == (3, 0)


ELSEWHERE = ["../m/x.safetensors", "/etc/passwd", "a/b.safetensors", "..\\x.safetensors", "x.bin", "", ".", ".."]


@pytest.mark.parametrize("file", [*ELSEWHERE, "x\n.safetensors"])
def test_an_index_that_names_other_places(folder, file):
    index = sharded(folder)
    content = json.loads(index.read_text())
    content["weight_map"]["a.weight"] = file
    index.write_text(json.dumps(content))
    refused(folder, index.name, "a.weight", "same folder")


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"weight_map": 3}', '{"weight_map": {}}', '{"weight_map": {"a": 3}}']
)
def test_an_index_that_is_none(folder, text):
    index = sharded(folder)
    index.write_text(text)
    refused(folder, index.name)


def test_an_index_and_shards_that_disagree(folder):
    index = sharded(folder)
    placed = json.loads(index.read_text())["weight_map"]
    first, second = folder / placed["a.weight"], folder / placed["b.weight"]
    index.write_text(json.dumps({"weight_map": placed | {"d.weight": first.name}}))
    refused(folder, first.name, "d.weight is missing", index.name)
    index.write_text(json.dumps({"weight_map": placed | {"a.weight": second.name}}))
    refused(folder, second.name, "a.weight")
    index.write_text(json.dumps({"weight_map": placed}))
    save_file({name: weights()[name] for name in ("a.weight", "b.weight")}, second)
    refused(folder, second.name, "a.weight is also in", first.name)
    second.unlink()
    refused(folder, second.name, "no such file")
    second.write_bytes(b"")
    refused(folder, second.name, "not a whole safetensors file")


@pytest.mark.sabotage
def test_tensors_over_each_other_are_noticed(folder, monkeypatch):
    monkeypatch.setattr(safetensors_file, "_check_cover", lambda *given: None)
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        test_headers_that_lie(folder, {"a": ENTRY, "b": ENTRY}, bytes(8), "begins")


@pytest.mark.sabotage
def test_links_that_may_lead_anywhere_are_noticed(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(Path, "is_relative_to", lambda path, home: True)
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        test_a_link_that_leaves_the_folder(folder, tmp_path, "config.json")


def test_a_network_of_vision_is_no_language_model(tmp_path):
    (tmp_path / "network.json").write_text("{}")
    with pytest.raises(UserError, match="is a network of vision; use it with `burnish predict`"):
        open_folder(tmp_path)
