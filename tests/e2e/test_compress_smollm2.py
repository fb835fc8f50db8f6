"""SmolLM2 compressed from the command line, calibrated on conversations in its own template; minutes, so only when asked for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from burnish.cli import code_of
from burnish.errors import UserError
from burnish.load.folder import open_folder
from burnish.load.model import load_model
from burnish.load.source import open_model
from compressing import excerpts

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with text to judge on."""
    try:
        open_model("smollm2")
    except UserError as error:
        pytest.skip(f"SmolLM2 cannot be had here: {error}")
    folder = tmp_path_factory.mktemp("smol")
    excerpts(folder)
    return folder


def test_smollm2_in_four_bits(place, monkeypatch, capsys):
    monkeypatch.chdir(place)
    words = ["--with", "awq", "group=64", "ratios=2", "clip=false", "--calibrate", "asset:chat", "--text", "judge.txt"]
    sizes = ["--rows", "2", "--length", "128", "--tokens", "512"]
    assert code_of(["compress", "smollm2", *words, *sizes, "--max-drop", "60%", "--out", "small"]) == 0
    out = capsys.readouterr().out
    assert "the weights were Q4_1" in " ".join(out.split())
    found = json.loads(Path("small/report.json").read_text())["verified"]
    size = next(cost for cost in found["costs"] if cost["key"] == "file.bytes")
    assert size["predicted"] == size["compressed"] == Path("small/model.safetensors").stat().st_size
    assert size["compressed"] < 0.45 * size["baseline"]
    assert found["agreement"]["same likeliest"] > 0.5
    model, _ = load_model(open_folder("small"), dtype=torch.float32)
    assert sum(hasattr(module, "dequantized") for module in model.modules()) == 30 * 7
    assert code_of(["generate", "small", "It was a truth", "--max-new-tokens", "4"]) == 0
    assert capsys.readouterr().out.startswith("It was a truth")
    assert code_of(["compress", "small", *words, *sizes, "--out", "smaller"]) == 2
    assert "compressed already" in capsys.readouterr().err
