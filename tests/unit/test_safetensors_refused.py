"""Model folders that cannot be read or written: one line with the file and the key."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from burnish.config import ModelConfig
from burnish.errors import UserError
from burnish.export.check import check_tokenizer
from burnish.export.safetensors import save_folder
from burnish.layout import INDEX, SINGLE
from burnish.load.model import load_folder
from burnish.models.decoder import Decoder

CONFIG = ModelConfig(vocab=37, hidden=24, ffn=40, layers=2, heads=3, kv_heads=1, max_positions=32, eos=0)
EMBED, HEAD, Q = "model.embed_tokens.weight", "lm_head.weight", "model.layers.1.self_attn.q_proj.weight"


@pytest.fixture
def folder(tmp_path):
    save_folder(Decoder(CONFIG, torch.Generator().manual_seed(0)), CONFIG, tmp_path / "m")
    return tmp_path / "m"


@pytest.fixture
def sharded(tmp_path):
    save_folder(Decoder(CONFIG, torch.Generator().manual_seed(0)), CONFIG, tmp_path / "s", shard_bytes=5000)
    return tmp_path / "s"


def refused(folder, *parts: str) -> None:
    with pytest.raises(UserError) as caught:
        load_folder(folder)
    message = str(caught.value)
    assert "\n" not in message
    for part in parts:
        assert part in message


def edit_weights(folder, change) -> None:
    tensors = {name: tensor.clone() for name, tensor in load_file(folder / SINGLE).items()}
    change(tensors)
    save_file(tensors, folder / SINGLE)


def edit_index(folder, change) -> None:
    index = json.loads((folder / INDEX).read_text())
    change(index)
    (folder / INDEX).write_text(json.dumps(index))


@pytest.mark.parametrize("size", [0, 5, 100, -1])
def test_truncated_weights(folder, size):
    whole = (folder / SINGLE).read_bytes()
    (folder / SINGLE).write_bytes(whole[:size])
    refused(folder, str(folder / SINGLE), "not a whole safetensors file")


def test_weights_that_are_no_weights(folder):
    (folder / SINGLE).write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(500))
    refused(folder, str(folder / SINGLE), "not a whole safetensors file")


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        (lambda t: t.pop(Q), (Q, "missing")),
        (lambda t: t.pop(EMBED), (EMBED, "missing")),
        (lambda t: t.update({"model.layers.7.mlp.up_proj.weight": torch.ones(2)}), (SINGLE, "layers.7", "unexpected")),
        (lambda t: t.update({Q: torch.ones(24, 23)}), (SINGLE, Q, "(24, 23)", "(24, 24)")),
        (lambda t: t.update({Q: torch.ones(24, 24, dtype=torch.int8)}), (SINGLE, Q, "int8", "bfloat16")),
        (lambda t: t.update({HEAD: t[EMBED] + 1}), (SINGLE, HEAD, EMBED, "tied")),
    ],
)
def test_wrong_weights(folder, change, parts):
    edit_weights(folder, change)
    refused(folder, *parts)


def test_an_untied_model_needs_its_head(folder):
    config = json.loads((folder / "config.json").read_text()) | {"tie_word_embeddings": False}
    (folder / "config.json").write_text(json.dumps(config))
    refused(folder, HEAD, "missing")


def test_stored_rotary_frequencies_are_read_over(folder):
    edit_weights(folder, lambda t: t.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}))
    load_folder(folder)


def test_pickles_are_not_opened(folder):
    (folder / SINGLE).rename(folder / "pytorch_model.bin")
    refused(folder, "pytorch_model.bin", "pickle")


def test_no_weights(folder):
    (folder / SINGLE).unlink()
    refused(folder, str(folder), SINGLE)


def test_no_folder_and_no_config(folder, tmp_path):
    refused(tmp_path / "absent", "no such folder")
    (folder / "config.json").unlink()
    refused(folder, "config.json", "no such file")


@pytest.mark.parametrize(
    "outside", ["../m/model.safetensors", "/etc/passwd", "a/b.safetensors", "..\\x.safetensors", "x.bin"]
)
def test_an_index_that_points_outside_its_folder(sharded, outside):
    edit_index(sharded, lambda index: index["weight_map"].update({Q: outside}))
    refused(sharded, INDEX, "same folder")


def test_an_index_that_names_a_shard_that_is_not_there(sharded):
    gone = sorted(sharded.glob("model-*.safetensors"))[1]
    gone.unlink()
    refused(sharded, gone.name, "no such file")


def test_an_index_that_places_a_weight_wrongly(sharded):
    first = sorted(sharded.glob("model-*.safetensors"))[0].name
    edit_index(sharded, lambda index: index["weight_map"].update({Q: first}))
    refused(sharded, first, Q)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"weight_map": 3}', "\x00\x01"])
def test_an_index_that_is_none(sharded, text):
    (sharded / INDEX).write_text(text)
    refused(sharded, INDEX)


def tokenizer_file(path, tokens: int, added: int = 0):
    content = {
        "model": {"type": "BPE", "vocab": {f"t{i}": i for i in range(tokens)}, "merges": []},
        "added_tokens": [{"id": tokens + i, "content": f"<{i}>"} for i in range(added)],
    }
    path.write_text(json.dumps(content))
    return path


def test_a_tokenizer_must_fit_the_vocabulary(tmp_path):
    path = tmp_path / "tokenizer.json"
    assert check_tokenizer(tokenizer_file(path, 37), CONFIG) == 37
    assert check_tokenizer(tokenizer_file(path, 20, added=3), CONFIG) == 23  # a padded vocabulary is fine
    with pytest.raises(UserError, match=r"tokenizer\.json: has 38 tokens, the model 37; vocab must be 38 or more"):
        check_tokenizer(tokenizer_file(path, 36, added=2), CONFIG)
    with pytest.raises(UserError, match="no token 30, the model's eos"):
        check_tokenizer(tokenizer_file(path, 20), CONFIG.model_copy(update={"eos": 30}))


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"model": {}}', '{"model": {"vocab": 3}}', "\x00", '{"model": {"vocab": {}}}']
)
def test_a_tokenizer_that_is_none(tmp_path, text):
    (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(UserError, match=r"tokenizer\.json"):
        check_tokenizer(tmp_path, CONFIG)


def test_a_unigram_vocabulary_is_read(tmp_path):
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": {"vocab": [["<s>", 0.0], ["a", -1.5]]}}))
    assert check_tokenizer(tmp_path, CONFIG) == 2


def test_a_tokenizer_that_does_not_fit_stops_the_export(tmp_path):
    tokenizer_file(tmp_path / "tokenizer.json", 40)
    with pytest.raises(UserError, match="has 40 tokens"):
        save_folder(Decoder(CONFIG), CONFIG, tmp_path / "m", tokenizer=tmp_path / "tokenizer.json")
    assert [p.name for p in tmp_path.iterdir()] == ["tokenizer.json"]


def test_a_folder_with_something_else_in_it_is_not_replaced(tmp_path):
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "thesis.tex").write_text("years of work")
    with pytest.raises(UserError, match=r"thesis\.tex"):
        save_folder(Decoder(CONFIG), CONFIG, tmp_path / "m")
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match="is a file"):
        save_folder(Decoder(CONFIG), CONFIG, tmp_path / "file")
    with pytest.raises(UserError, match="cannot be written"):
        save_folder(Decoder(CONFIG), CONFIG, tmp_path / "file" / "m")


@pytest.mark.parametrize(("option", "value"), [("dtype", "float31"), ("dtype", "int8"), ("shard_bytes", 0)])
def test_wrong_options_are_named(tmp_path, option, value):
    with pytest.raises(UserError, match=option):
        save_folder(Decoder(CONFIG), CONFIG, tmp_path / "m", **{option: value})
    assert not list(tmp_path.iterdir())
