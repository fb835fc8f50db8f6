"""A run with adapters: resumed bit for bit, merged at its end, kept alone beside that, and said in its records."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from burnish.cli import code_of
from burnish.config import ModelConfig
from burnish.data.tokenizer import Tokenizer
from burnish.errors import Stopped
from burnish.export.safetensors import save_folder
from burnish.load.folder import open_folder
from burnish.load.model import load_folder
from burnish.models.decoder import Decoder
from burnish.ops.lora import adapted
from burnish.recipe import Recipe, replace
from burnish.recipe_files import load
from burnish.records import Records, read
from burnish.run import run
from burnish.runnable import best_checkpoint, load_best
from burnish.train import loop

SHAPE = ModelConfig(vocab=300, hidden=32, ffn=48, heads=4, kv_heads=2, layers=2, max_positions=64, init_std=0.1)


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base model, a tokenizer and a text."""
    folder = tmp_path_factory.mktemp("base")
    text = " ".join(f"the {n % 7} cats saw {n % 5} dogs;" for n in range(900))
    (folder / "text.txt").write_text(text)
    Tokenizer.train([text], SHAPE.vocab).save(folder / "tokenizer.json")
    save_folder(
        Decoder(SHAPE, torch.Generator().manual_seed(3)), SHAPE, folder / "model", tokenizer=folder / "tokenizer.json"
    )
    return folder


def recipe(start: Path, **more: object) -> Recipe:
    config = ModelConfig.from_file(start / "model" / "config.json")
    changes = {
        "name": "narrow",
        "model": config.model_dump(),
        "data.train": [str(start / "text.txt")],
        "data.heldout": [],
        "data.heldout_fraction": 0.1,
        "data.tokenizer": None,
        "data.seq": 24,
        "optim.lr": 0.02,
        "schedule.warmup_steps": 2,
        "train.init": str(start / "model"),
        "train.steps": 12,
        "train.global_batch": 4,
        "train.micro_batch": 2,
        "train.eval_every": 6,
        "train.checkpoint_every": 4,
        "train.compile": "off",
        "export.prompts": [],
        "techniques": {"lora": {"rank": 4}},
        "machine.threads": 1,
    }
    return replace(load("quickstart"), changes | {key.replace("__", "."): value for key, value in more.items()})


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return {name: tensor.read() for name, tensor in open_folder(folder).tensors.items()}


def test_a_run_learns_merges_and_says_so(start: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    run(recipe(start), folder=out, quiet=True)
    records = read(Records, out / "records.json")
    assert records.evals[-1].loss < records.evals[0].loss
    assert records.checks["weights_equal"] is True
    assert records.checks["merged_equals_adapted"] is True
    assert records.checks["merged_logits_difference"] < 1e-5
    assert records.checks["adapters"] == "14 merged in float32, nothing rounded off"
    assert records.measured["memory.optimizer"] < records.measured["memory.parameters"]
    model = load_best(recipe(start), best_checkpoint(out / "checkpoints"))
    base, merged = weights(start / "model"), weights(out / "model")
    for name, layer in adapted(model):
        theirs = "model." + name.replace("attention.", "self_attn.") + "_proj.weight"
        exact = base[theirs].double() + layer.scale * layer.b.double() @ layer.a.double()
        assert (merged[theirs] - exact).abs().max() < 1e-6
        assert torch.equal(layer.weight, base[theirs])
    assert json.loads((out / "adapter" / "adapter_config.json").read_text())["base_model_name_or_path"] == str(
        start / "model"
    )
    page = (out / "report.html").read_text()
    assert "14 merged in float32" in page
    check_exports_of(out, tmp_path)


def check_exports_of(out: Path, place: Path) -> None:
    """Other formats say what they keep of the adapters."""
    from burnish.finished import export

    half = export(out, place / "half", "bfloat16")
    assert 0 < half["update_sqnr_db"] < 60
    blocks = export(out, place / "blocks.gguf", "q8_0")
    assert "rounded once" in blocks["adapters"]
    assert load_folder(place / "half")[0].embed.weight.dtype == torch.bfloat16


@pytest.mark.parametrize("compute", ["fp32", "bf16"])
def test_a_run_that_was_stopped_goes_on_bit_for_bit(
    start: Path, tmp_path: Path, compute: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = recipe(
        start, precision=compute, memory__checkpointing="selective", techniques={"lora": {"train": ["norms"]}}
    )
    run(given, folder=tmp_path / "whole", quiet=True)
    right = loop._Run._step

    def stopping(self: loop._Run, state: loop.State) -> loop.Step:
        if state.step == 7:
            raise Stopped(15, "here")
        return right(self, state)

    monkeypatch.setattr(loop._Run, "_step", stopping)
    with pytest.raises(Stopped):
        run(given, folder=tmp_path / "parts", quiet=True)
    monkeypatch.undo()
    run(given, folder=tmp_path / "parts", quiet=True)
    one, two = (read(Records, tmp_path / name / "records.json") for name in ("whole", "parts"))
    assert [step.loss for step in one.curve] == [step.loss for step in two.curve]
    whole, parts = weights(tmp_path / "whole" / "model"), weights(tmp_path / "parts" / "model")
    assert all(torch.equal(whole[name], parts[name]) for name in whole)
    assert not (tmp_path / "whole" / "adapter").exists()  # norms learned too, which such a file does not hold


def test_the_command_line_takes_adapters(capsys: pytest.CaptureFixture) -> None:
    assert code_of(["plan", "quickstart", 'techniques.lora={"rank": 4}']) == 0
    assert "lora" in capsys.readouterr().out
    assert code_of(["plan", "quickstart", 'techniques.lora={"targets": ["mlp.gat"]}']) == 2
    assert "did you mean 'mlp.gate'?" in capsys.readouterr().err
