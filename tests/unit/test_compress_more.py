"""The compress verb beyond four bits of a decoder: an encoder's folder in eight bits, and one technique after another."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import torch

from burnish.cli import code_of
from burnish.encoders.config import EncoderConfig
from burnish.encoders.weight_files import encoder_file_bytes
from burnish.export.encoder import save_encoder
from burnish.load.encoder import load_encoder
from burnish.load.folder import open_folder
from burnish.load.model import load_model
from burnish.load.sentence_folder import Pooling
from burnish.models.encoder import Encoder
from burnish.serve.embed import Embedder
from compressing import QUICKSTART, excerpts

CONFIG = EncoderConfig(vocab=1024, hidden=48, ffn=72, layers=3, heads=3, pooler=True)
EIGHT = ("--with", "int8", "calibrator=max", "smooth=off")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with two texts and a small encoder of random weights that reads them."""
    folder = tmp_path_factory.mktemp("more")
    for text in excerpts(folder):
        lines = [line for line in text.read_text().splitlines() if len(line) > 30]
        text.write_text("\n".join(lines[:40]))
    model = Encoder(CONFIG, torch.Generator().manual_seed(1))
    with torch.no_grad():
        for parameter in model.layers.parameters():
            parameter.mul_(10 if parameter.dim() > 1 else 1)
        model.layers[1].mlp.up.weight[5] *= 60  # what `down` reads of it drowns all else
    files = open_folder(QUICKSTART).tokenizer
    assert files is not None
    save_encoder(model, CONFIG, folder / "encoder", tokenizer=files, pooling=Pooling("mean", True, 64))
    return folder


@pytest.fixture(autouse=True)
def _there(place, monkeypatch):
    monkeypatch.chdir(place)
    monkeypatch.setenv("BURNISH_CACHE", str(place / "cache"))


def compress(model: str, *words: str, out: str) -> dict:
    texts = ("--calibrate", "calibrate.txt", "--text", "judge.txt", "--rows", "6", "--length", "64", "--tokens", "600")
    assert code_of(["compress", model, *texts, "--out", out, *words]) == 0
    return json.loads(Path(out, "report.json").read_text())["verified"]


def size(found: dict, key: str = "file.bytes") -> dict:
    return next(cost for cost in found["costs"] if cost["key"] == key)


@pytest.mark.parametrize("activations", ["static", "dynamic"])
def test_an_encoder_is_written_in_eight_bits_and_says_the_same(activations):
    out = f"eight-{activations}"
    found = compress("encoder", *EIGHT, f"activations={activations}", out=out)
    assert found["judged"]["name"] == "cosine"
    assert 0 < found["judged"]["drop"] < 5
    files = sum(path.stat().st_size for path in Path(out).glob("*.safetensors"))
    assert size(found)["predicted"] == size(found)["compressed"] == files
    assert size(found)["baseline"] == sum(path.stat().st_size for path in Path("encoder").glob("*.safetensors"))
    there = open_folder(out)
    assert there.config["quantization_config"]["ignore"] == ["pooler.dense"]
    model, config = load_encoder(there, dtype=torch.float32)
    assert config == CONFIG
    assert type(model.layers[0].attention.q).__name__ == "Int8Linear"
    own = Embedder.of(open_folder("encoder"))
    texts = ["It was a truth", "She was a lady of great beauty, and very rich"]
    cosine = (own.embed(texts) * Embedder.of(there).embed(texts)).sum(1)
    assert cosine.min() > 0.9
    assert cosine.mean() < 1


def test_noise_for_an_encoder_is_told_and_text_is_not():
    """Letters at random are no words of its tokenizer."""
    draw = random.Random(0)
    lines = ["".join(draw.choice("qxzvkjw7%") for _ in range(40)) for _ in range(12)]
    Path("noise.txt").write_text("\n".join(lines))
    words = ("--text", "judge.txt", "--rows", "4", "--length", "32", *EIGHT, "activations=dynamic", "--out", "told")
    for source, wanted in (("noise.txt", 1), ("calibrate.txt", 0)):
        assert code_of(["compress", "encoder", "--calibrate", source, *words]) == 0
        notes = json.loads(Path("told/report.json").read_text())["verified"]["notes"]
        assert sum(f"{source}: unlike the judged text" in note for note in notes) == wanted


def test_parts_of_an_encoder_are_kept():
    found = compress("encoder", *EIGHT, "--max-drop", "0.15 points", "--fallback", "mixed", out="mixed")
    kept = [part["name"] for part in found["parts"] if part["kept"]]
    assert kept == ["layers.1.mlp"]
    assert found["judged"]["drop"] <= 0.15
    files = sum(path.stat().st_size for path in Path("mixed").glob("*.safetensors"))
    assert size(found)["predicted"] == size(found)["compressed"] == files
    assert size(found, "memory.bytes")["predicted"] == size(found, "memory.bytes")["compressed"]
    model, _ = load_encoder(open_folder("mixed"))
    for name, module in model.named_modules():
        if name.startswith("layers.") and name.endswith((".q", ".o", ".up", ".down")):
            assert (type(module).__name__ == "Linear") is name.startswith(tuple(kept)), name


def test_bytes_without_integers_are_those_of_the_plain_folder():
    files = sum(path.stat().st_size for path in Path("encoder").glob("*.safetensors"))
    assert encoder_file_bytes(CONFIG, None, "float32", 2**40) == files


def test_pruned_then_rounded():
    words = ("--with", "prune,awq", "prune.channels=0.2", "prune.importance=norm", "awq.method=rtn", "awq.group=32")
    found = compress(str(QUICKSTART), *words, "prune.multiple=32", out="both")
    assert found["techniques"] == ["prune", "awq"]
    files = sum(path.stat().st_size for path in Path("both").glob("*.safetensors"))
    assert size(found)["predicted"] == size(found)["compressed"] == files
    assert size(found, "memory.bytes")["predicted"] == size(found, "memory.bytes")["compressed"]
    model, config = load_model(open_folder("both"))
    assert config.ffn < 352
    assert model.layers[0].mlp.down.in_features == config.ffn
    alone = compress(str(QUICKSTART), "--with", "prune", "channels=0.2", "importance=norm", out="pruned")
    assert size(alone)["predicted"] == size(alone)["compressed"]
    assert size(alone)["compressed"] > size(found)["compressed"]
    texts = ("--calibrate", "calibrate.txt", "--text", "judge.txt", "--rows", "2", "--length", "64", "--tokens", "300")
    tight = ("--with", "prune", "channels=0.2", "importance=norm", "--max-drop", "0.001%", "--fallback", "mixed")
    assert code_of(["compress", str(QUICKSTART), *texts, *tight, "--out", "never"]) == 3
    assert not Path("never").exists()


@pytest.mark.sabotage
def test_sabotage_a_pooler_taken_for_a_small_matrix_is_noticed(monkeypatch):
    import burnish.encoders.weight_files as files

    real = files.module_of
    monkeypatch.setattr(
        files, "module_of", lambda link: real(link) or ("pooler" if "pooler.weight" in link.ours else "")
    )
    with pytest.raises(AssertionError):
        test_an_encoder_is_written_in_eight_bits_and_says_the_same("static")
