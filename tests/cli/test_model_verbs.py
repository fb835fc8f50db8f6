"""The model verbs: what they print, what a script reads, and one line with exit code 2 where there is no such model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from burnish.cli import code_of
from burnish.config import ModelConfig
from burnish.export.safetensors import save_folder
from burnish.models.decoder import Decoder

CONFIG = ModelConfig(vocab=37, hidden=24, ffn=40, layers=2, heads=3, kv_heads=1, max_positions=32, eos=0)
Q = "model.layers.1.self_attn.q_proj.weight"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_folder(Decoder(CONFIG, torch.Generator().manual_seed(0)), CONFIG, "m")
    return tmp_path / "m"


def test_inspect_prints_a_table(folder, capsys):
    assert code_of(["inspect", "m"]) == 0
    out = capsys.readouterr().out
    assert all(len(line) <= 80 for line in out.splitlines())
    assert f"{CONFIG.parameters:,}" in out
    assert "every tensor that the family needs is there" in " ".join(out.split())
    assert Q not in out
    assert code_of(["inspect", "m", "--tensors"]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if Q in line)
    assert line.split()[1:] == ["24", "x", "24", "float32"]


def test_inspect_as_json_is_whole(folder, capsys):
    assert code_of(["inspect", "m", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["parameters"]["total"] == CONFIG.parameters
    assert found["tensors"][Q] == {
        "shape": [24, 24],
        "format": "float32",
        "bytes": 24 * 24 * 4,
        "file": "model.safetensors",
        "part": "attention",
    }
    assert found["tie"] == {
        "declared": True,
        "written": False,
        "equal": None,
        "embedding": "model.embed_tokens.weight",
        "head": None,
    }


def test_what_steers_a_terminal_is_not_printed(folder, capsys):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(
        json.dumps(config | {"model_type": "\x1b[31mred\u202e", "architectures": ["a\nb"]})
    )
    assert code_of(["inspect", "m"]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "\u202e" not in out
    assert "red" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["inspect", "nowhere"], "no such folder or file"),
        (["inspect", "m/config.json"], "folder it is in"),
        (["fetch", "smolm2"], "did you mean 'smollm2'?"),
        (["fetch", "nonsense"], "minilm, smollm2"),
        (["fetch", "org/name"], "model 'org/name'"),
        (["inspect", "org/name@v1"], "model 'org/name'"),
    ],
)
def test_no_such_model(folder, capsys, monkeypatch, words, said):
    monkeypatch.setattr(pytest.importorskip("huggingface_hub.constants"), "HF_HUB_OFFLINE", True)
    assert code_of(words) == 2
    caught = capsys.readouterr()
    assert caught.out == ""
    assert caught.err.count("\n") == 1
    assert said in caught.err


def test_fetch_says_where_and_what_to_know(tmp_path, capsys, monkeypatch):
    """Of a model that is there already: files of the right sizes are taken as they are."""
    from burnish.load.wheels import model_named, place_of

    monkeypatch.setenv("BURNISH_CACHE", str(tmp_path))
    model = model_named("smollm2")
    for name, file in model.files.items():
        (place_of(model) / name).parent.mkdir(parents=True, exist_ok=True)
        with (place_of(model) / name).open("wb") as stream:
            stream.truncate(file.bytes)
    assert code_of(["fetch", "smollm2"]) == 0
    caught = capsys.readouterr()
    assert caught.err == ""  # no bar where there is nothing to wait for
    text = " ".join(caught.out.split())
    for said in (str(tmp_path), "Apache-2.0", "Q4_1", "optimistic", "burnish inspect smollm2"):
        assert said in text


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
from burnish.cli import main
main(sys.argv[1:])
"""


def run_without_torch(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", WITHOUT_TORCH, *words]
    return subprocess.run(command, capture_output=True, text=True, env=os.environ | {"COLUMNS": "200"})


def test_inspect_does_without_torch(folder):
    done = run_without_torch("inspect", "m")
    assert done.returncode == 0, done.stderr
    assert f"{CONFIG.parameters:,}" in done.stdout
    assert "none without torch" in " ".join(done.stdout.split())
    for name in ("m/x.gguf", "p/pytorch_model.bin"):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_bytes(b"")
    Path("p/config.json").write_text("{}")
    for model in ("m/x.gguf", "p"):
        done = run_without_torch("inspect", model)
        assert done.returncode == 2
        assert "pip install 'burnish[train]'" in done.stderr
        assert done.stderr.count("\n") == 1


def test_inspect_does_not_read_what_is_large(tmp_path, capsys):
    """Weights of many bytes that are none on the disk: a file with a hole in it."""
    head = {"x": {"dtype": "F32", "shape": [1 << 31], "data_offsets": [0, 1 << 33]}}
    text = json.dumps(head).encode()
    with (tmp_path / "model.safetensors").open("wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        stream.truncate(8 + len(text) + (1 << 33))
    (tmp_path / "config.json").write_text("{}")
    assert code_of(["inspect", str(tmp_path)]) == 0
    assert "8.00 GiB" in capsys.readouterr().out


def test_a_written_head_is_compared(folder, capsys):
    from safetensors.torch import load_file

    tensors = load_file(folder / "model.safetensors")
    save_file(tensors | {"lm_head.weight": tensors["model.embed_tokens.weight"].clone()}, folder / "model.safetensors")
    assert code_of(["inspect", "m"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "declared; a head is in the files and equals the embedding" in out
    assert f"parameters {CONFIG.parameters:,} " in out  # counted once
