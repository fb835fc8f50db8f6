"""Weight files that attack or are damaged anywhere: refused in one line or read, never run, never a crash."""

from __future__ import annotations

import json
import os
import pickle
import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from small_folder import made_folder, read_all, refused, weights

from burnish.errors import UserError
from burnish.load.folder import open_folder


@pytest.fixture
def folder(tmp_path):
    return made_folder(tmp_path / "m")


class Attack:
    def __init__(self, function, *given):
        self.call = (function, given)

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (Attack(os.system, "touch ran"), "system"),
        ({"a": Attack(os.system, "touch ran")}, "system"),
        ({"a": Attack(eval, "open('ran', 'w')")}, "eval"),
        ({"a": torch.nn.Linear(2, 2)}, "Linear"),
        ({"a": torch.ones(2), "b": 3}, "'b' is a int"),
        ({3: torch.ones(2)}, "'3'"),
        ([torch.ones(2)], "a list"),
        (torch.ones(2), "a Tensor"),
        ({"a": torch.ones(3).to_sparse()}, "a is no plain tensor"),
        ({"a": torch.ones(2, device="meta")}, "a is no plain tensor"),
        ({"a": torch.ones(1).expand(10**9)}, "a is no plain tensor"),
        ({"a\n": torch.ones(2)}, "printable"),
        ({"a": torch.ones(8, dtype=torch.int8)}, "a is int8"),
    ],
)
@pytest.mark.parametrize("how", ["zip", "legacy"])
def test_pickles_that_ask_for_more_than_tensors(folder, tmp_path, monkeypatch, content, said, how):
    monkeypatch.chdir(tmp_path)
    (folder / "model.safetensors").unlink()
    torch.save(content, folder / "pytorch_model.bin", _use_new_zipfile_serialization=how == "zip")
    refused(folder, "pytorch_model.bin", said)
    assert not (tmp_path / "ran").exists()


def test_a_byte_wide_float_in_a_pickle(folder):
    (folder / "model.safetensors").unlink()
    torch.save({"a": torch.ones(8).to(torch.float8_e5m2)}, folder / "pytorch_model.bin")
    refused(folder, "pytorch_model.bin", "a is float8_e5m2")


@pytest.mark.parametrize("protocol", range(6))
def test_bare_pickles(folder, tmp_path, monkeypatch, protocol):
    monkeypatch.chdir(tmp_path)
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Attack(os.system, "touch ran"), protocol=protocol))
    refused(folder, "pytorch_model.bin", "pickle")
    assert not (tmp_path / "ran").exists()


def test_a_pickle_under_another_name_and_no_weights(folder):
    (folder / "model.safetensors").rename(folder / "consolidated.pth")
    refused(folder, "consolidated.pth", "pickle", "model.safetensors")
    (folder / "consolidated.pth").unlink()
    refused(folder, str(folder), "no model.safetensors")
    refused(folder / "none", "no such folder")
    refused(folder / "config.json", "no such folder")


def saved(how: str) -> bytes:
    with tempfile.TemporaryDirectory() as where:
        file = Path(where) / "w"
        if how == "safetensors":
            save_file(weights(), file)
        else:
            torch.save(weights(), file, _use_new_zipfile_serialization=how == "zip")
        return file.read_bytes()


WHOLE = {how: saved(how) for how in ("safetensors", "zip", "legacy")}
FLIPS = st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255)), max_size=3)


@pytest.mark.parametrize("how", WHOLE)
@given(flips=FLIPS, cut=st.none() | st.floats(0, 1), more=st.binary(max_size=3))
@settings(max_examples=150, deadline=None)
def test_damaged_weights_are_refused_or_read(how, flips, cut, more):
    content = bytearray(WHOLE[how])
    for where, bits in flips:
        content[int(where * len(content))] ^= bits
    if cut is not None:
        del content[int(cut * len(content)) :]
    check_damaged("model.safetensors" if how == "safetensors" else "pytorch_model.bin", bytes(content) + more)


@given(flips=FLIPS, cut=st.none() | st.floats(0, 1))
@settings(max_examples=100, deadline=None)
def test_damaged_settings_are_refused_or_read(flips, cut):
    content = bytearray(json.dumps({"model_type": "llama", "x": [1, 2.5, None, {"y": "é\u2028"}]}).encode())
    for where, bits in flips:
        content[int(where * len(content))] ^= bits
    if cut is not None:
        del content[int(cut * len(content)) :]
    check_damaged("config.json", bytes(content))


def check_damaged(name: str, content: bytes) -> None:
    """The folder with this content of one file opens and reads, or is a UserError of one line; nothing else."""
    with tempfile.TemporaryDirectory() as where:
        folder = made_folder(Path(where) / "m")
        if name == "pytorch_model.bin":
            (folder / "model.safetensors").unlink()
        (folder / name).write_bytes(content)
        message = said_of(folder)
    assert "\n" not in message
    assert name in message or not message


def said_of(folder: Path) -> str:
    """The refusal, or nothing when all of the folder can be read and its settings written."""
    try:
        found, read = open_folder(folder), read_all(folder)
    except UserError as error:
        return str(error)
    assert {name: tuple(tensor.shape) for name, tensor in read.items()} == {
        n: t.shape for n, t in found.tensors.items()
    }
    json.dumps(found.config, ensure_ascii=False).encode()
    return ""
