"""Bad input of compression through the command line: one line and nothing half-written, or what is right and told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from burnish.cli import code_of
from burnish.compress import awq_search
from burnish.config import ModelConfig
from burnish.export.safetensors import save_folder
from burnish.load.folder import open_folder
from burnish.load.model import load_model
from burnish.models.decoder import Decoder
from compressing import QUICKSTART, excerpts

ROUNDED = ("--with", "awq", "method=rtn", "group=32")
SEARCHED = ("--with", "awq", "group=32", "ratios=1", "clip=false")
TEXTS = ("--calibrate", "calibrate.txt", "--text", "judge.txt")


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    return excerpts(tmp_path_factory.mktemp("texts"))


@pytest.fixture(autouse=True)
def _apart(tmp_path, monkeypatch, texts):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BURNISH_CACHE", str(tmp_path / "cache"))
    for text in texts:
        (tmp_path / text.name).symlink_to(text)


def compress(*words: str, model: str = str(QUICKSTART)) -> int:
    return code_of(
        ["compress", model, "--rows", "3", "--length", "48", "--tokens", "200", "--out", "small", *words],
    )


def refused(capsys, *words: str, model: str = str(QUICKSTART)) -> str:
    """The one line that is said; nothing is left on the disk."""
    assert compress(*words, model=model) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("burnish: ")]
    assert list(Path().glob("*small*")) == []
    return line


def changed(change) -> str:
    """A copy of the small model with other tensors."""
    folder = Path("model")
    folder.mkdir()
    for file in QUICKSTART.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return str(folder)


def test_without_calibration_text(capsys):
    assert "name some with --calibrate" in refused(capsys, *ROUNDED, "--text", "judge.txt")
    assert "no-such.txt" in refused(capsys, *ROUNDED, "--calibrate", "no-such.txt", "--text", "judge.txt")
    Path("empty.txt").touch()
    assert "empty.txt: the file is empty" in refused(
        capsys, *ROUNDED, "--calibrate", "empty.txt", "--text", "judge.txt"
    )
    assert "name a text with --text" in refused(capsys, *ROUNDED, "--calibrate", "calibrate.txt")


def test_a_text_shorter_than_a_row_is_used_and_told():
    Path("short.txt").write_text("It was a truth")
    assert compress(*SEARCHED, "--calibrate", "short.txt", "--text", "judge.txt") == 0
    notes = json.loads(Path("small/report.json").read_text())["verified"]["notes"]
    assert any("less than one row of 48; give it more text" in note for note in notes)
    assert notes[0] == "35 of 35 matrices of the layers are integers"


def test_weights_that_are_not_finite(capsys):
    def damage(tensors):
        tensors["model.layers.2.self_attn.v_proj.weight"][3, 3] = float("inf")

    assert "layers.2.attention.v.weight holds values that are not finite" in refused(
        capsys, *ROUNDED, *TEXTS, model=changed(damage)
    )


def test_a_model_that_is_compressed_already(capsys):
    assert compress(*ROUNDED, *TEXTS) == 0
    Path("small").rename("once")
    capsys.readouterr()
    assert "compressed already (pack-quantized)" in refused(capsys, *ROUNDED, *TEXTS, model="once")


def test_a_tied_head_stays_tied_and_in_floating_point():
    assert compress(*SEARCHED, *TEXTS) == 0
    with safe_open("small/model.safetensors", "pt") as file:
        names = set(file.keys())
    assert "model.embed_tokens.weight" in names
    assert not any(name.startswith("lm_head") for name in names), "the matrix is kept once"
    model, config = load_model(open_folder("small"))
    assert config.tied
    assert model.head.weight is model.embed.weight
    assert json.loads(Path("small/config.json").read_text())["quantization_config"]["ignore"] == ["lm_head"]


def test_four_bits_are_searched_for_on_the_processor_whatever_else_is_there(monkeypatch, capsys):
    monkeypatch.setattr("burnish.runnable.pick_device", lambda wanted: ("cuda", "CUDA found"))
    assert compress(*ROUNDED, *TEXTS) == 0
    assert "quickstart on cpu (where awq works)" in " ".join(capsys.readouterr().err.split())


def gpt2() -> str:
    """A family whose files hold joined and turned matrices, with the small model's tokenizer."""
    config = ModelConfig(family="gpt2", vocab=1024, hidden=32, ffn=64, layers=1, heads=2, max_positions=64)
    files = open_folder(QUICKSTART).tokenizer
    save_folder(Decoder(config, torch.Generator().manual_seed(0)), config, Path("gpt2"), tokenizer=files)
    return "gpt2"


def test_what_could_not_be_written_is_refused_before_the_search(capsys, monkeypatch):
    def searched(*_: object) -> None:
        raise AssertionError("a search began")

    monkeypatch.setattr(awq_search, "search_layer", searched)
    assert "gpt2 keeps" in refused(capsys, *SEARCHED, *TEXTS, model=gpt2())
    assert "fits every matrix" in refused(capsys, *SEARCHED, 'keep=["attention.*","mlp.*"]', *TEXTS)
    said = refused(capsys, *SEARCHED, *TEXTS, "--tp", "2")
    assert "group 32 does not divide 176 inputs of mlp.down on each of 2 cards; these do: -1" in said
    assert "3 cards of a server do not divide 4 heads" in refused(capsys, *SEARCHED, *TEXTS, "--tp", "3")
    assert "vLLM has no product of mlp.down" in refused(capsys, *SEARCHED, "symmetric=false", *TEXTS, "--for", "vllm")
    assert "reader" in refused(capsys, *SEARCHED, *TEXTS, "--for", "vlm")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--with", "rtn"), "rounding to nearest is awq with method=rtn"),
        (("--with", "rtn", "group=32"), "rounding to nearest is awq with method=rtn"),
        (("--with", "SmoothQuant"), "it is part of int8, as smooth=search or a strength"),
        (("--with", "awk"), "did you mean 'awq'?"),
        (("--with", "awq", "gruop=32"), "did you mean 'group'?"),
        (("--with", "awq", "int8.smooth=off"), "settings of int8, which is not in technique; name it there too"),
    ],
)
def test_a_technique_by_another_name(capsys, words, said):
    assert said in refused(capsys, *words, *TEXTS)


def test_settings_of_a_recipe_by_dotted_path(capsys):
    words = ["plan", "quickstart", "compress.technique=awq", "--json"]
    assert code_of([*words, "compress.settings.awq.group=32"]) == 0
    dotted = json.loads(capsys.readouterr().out)
    assert code_of([*words, 'compress.settings={"awq": {"group": 32}}']) == 0
    assert json.loads(capsys.readouterr().out) == dotted
    assert dotted["predicted"]["compressed.bytes"] > 0
    assert code_of([*words, "compress.settings.awk.group=32"]) == 2
    assert "no technique 'awk'; did you mean 'awq'?" in capsys.readouterr().err
    assert code_of([*words, "compress.settings.awq.group=32", "parallel.tp=2"]) == 2
    assert "on each of 2 cards" in capsys.readouterr().err
    assert code_of([*words, "compress.settings.awq.group=32", "parallel.tp=2", "compress.tp=1"]) == 0
