"""Model folders of others: what is listed is what the library reads, and it is read when it is asked for."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from small_folder import NAMES, made_folder, refused, sharded, weights

from burnish.errors import UserError
from burnish.load.folder import open_folder


@pytest.fixture
def folder(tmp_path):
    return made_folder(tmp_path / "m")


def test_a_folder_is_listed_and_read(folder):
    found = open_folder(folder)
    assert found.config == {"model_type": "llama", "hidden_size": 4}
    assert found.generation == {"eos_token_id": [2, 3]}
    assert found.format == "safetensors"
    assert found.where == str(folder)
    assert found.tokenizer is not None
    assert json.loads(found.tokenizer.tokenizer) == {"model": {"vocab": {"é": 0}}}
    assert found.tokenizer.template == "settings"
    assert {name: tensor.shape for name, tensor in found.tensors.items()} == NAMES
    for name, want in load_file(folder / "model.safetensors").items():
        stored = found.tensors[name]
        assert (stored.format, stored.bytes, stored.file) == ("float32", 4 * want.numel(), folder / "model.safetensors")
        assert torch.equal(stored.read(), want)
        stored.read().zero_()
        assert torch.equal(stored.read(), want)  # each read is a copy


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("how", ["safetensors", "zip", "legacy"])
def test_every_way_to_store_the_same_numbers(folder, dtype, how):
    (folder / "model.safetensors").unlink()
    if how == "safetensors":
        save_file(weights(dtype), folder / "model.safetensors")
    else:
        torch.save(weights(dtype), folder / "pytorch_model.bin", _use_new_zipfile_serialization=how == "zip")
    found = open_folder(folder)
    assert found.format == ("safetensors" if how == "safetensors" else "pytorch pickle")
    for name, want in weights(dtype).items():
        assert found.tensors[name].format == str(dtype).removeprefix("torch.")
        assert torch.equal(found.tensors[name].read(), want)
        assert found.tensors[name].read().dtype == dtype


@pytest.mark.parametrize("suffix", ["safetensors", "bin"])
def test_shards(folder, suffix):
    sharded(folder, suffix)
    found = open_folder(folder).tensors
    assert found.keys() == NAMES.keys()
    assert all(torch.equal(found[name].read(), want) for name, want in weights().items())
    assert len({tensor.file for tensor in found.values()}) == 3


def test_a_view_in_a_pickle_is_what_it_shows(folder):
    (folder / "model.safetensors").unlink()
    base = torch.arange(12.0).reshape(3, 4)
    torch.save({"t": base.T, "part": base[1, 1:3]}, folder / "pytorch_model.bin")
    found = open_folder(folder).tensors
    assert torch.equal(found["t"].read(), base.T)
    assert found["t"].read().is_contiguous()
    assert found["part"].read().tolist() == [5.0, 6.0]


def test_nothing_is_read_before_it_is_asked_for(folder):
    found = open_folder(folder)
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[:-4])
    with pytest.raises(UserError, match="changed while it was being read"):
        found.tensors["a.weight"].read()


def test_a_pickle_that_is_cut_after_it_was_opened_is_not_mapped_any_more(folder):
    (folder / "model.safetensors").unlink()
    torch.save({"t": torch.ones(2**18)}, folder / "pytorch_model.bin")
    found = open_folder(folder).tensors["t"]
    with (folder / "pytorch_model.bin").open("r+b") as stream:
        stream.truncate(100)
    with pytest.raises(UserError, match="changed while it was being read"):
        found.read()


TEMPLATES = {
    "file": {"chat_template.jinja": "file"},
    "folder": {"additional_chat_templates/default.jinja": "folder", "additional_chat_templates/tool_use.jinja": "no"},
    "listed": {},
}


@pytest.mark.parametrize("want", TEMPLATES)
def test_the_chat_template_wherever_it_is(folder, want):
    listed = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "listed"}]
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": listed}))
    for name, text in TEMPLATES[want].items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    found = open_folder(folder).tokenizer
    assert found is not None
    assert found.template == want


def test_a_folder_without_what_is_optional(folder):
    for name in ("generation_config.json", "tokenizer.json"):
        (folder / name).unlink()
    found = open_folder(folder)
    assert found.tokenizer is None
    assert found.generation == {}
    (folder / "tokenizer.json").write_text("{}")
    (folder / "tokenizer_config.json").write_text('{"chat_template": 3}')
    refused(folder, "tokenizer_config.json", "chat_template is a int")


def test_the_hubs_cache_is_read_through_its_links(folder, tmp_path):
    snapshot, blobs = tmp_path / "hub/models--a--b/snapshots/abc", tmp_path / "hub/models--a--b/blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for number, file in enumerate(sorted(folder.iterdir())):
        shutil.copy(file, blobs / str(number))
        (snapshot / file.name).symlink_to(f"../../blobs/{number}")
    found = open_folder(snapshot)
    assert torch.equal(found.tensors["b.weight"].read(), weights()["b.weight"])
    assert found.tensors["b.weight"].file == snapshot / "model.safetensors"
    (tmp_path / "link").symlink_to(snapshot)
    assert open_folder(tmp_path / "link").config == found.config
    (blobs / "0").unlink()
    refused(snapshot, "config.json", "link to a file that is gone")
