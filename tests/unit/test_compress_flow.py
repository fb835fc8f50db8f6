"""The compress verb on a small trained model: what it writes, refuses, repairs and leaves behind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from burnish.cli import code_of
from burnish.compress import flow
from burnish.load.folder import open_folder
from burnish.load.model import load_model
from compressing import QUICKSTART, excerpts

TEXTS = ("--calibrate", "calibrate.txt", "--text", "judge.txt")
SMALL = ("--rows", "8", "--length", "96", "--tokens", "1200")
ROUNDED = ("--with", "awq", "method=rtn", "group=-1")  # one scale a row: enough loss to be seen in few tokens


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """Beginnings of two novels."""
    return excerpts(tmp_path_factory.mktemp("texts"))


@pytest.fixture(autouse=True)
def _apart(tmp_path, monkeypatch, texts):
    monkeypatch.chdir(tmp_path)
    for text in texts:
        (tmp_path / text.name).symlink_to(text)
    monkeypatch.setenv("BURNISH_CACHE", str(tmp_path / "cache"))


def compress(*words: str, model: str = str(QUICKSTART), out: str = "small") -> int:
    return code_of(["compress", model, *TEXTS, *SMALL, "--out", out, *words])


def report(folder: str = "small") -> dict:
    return json.loads(Path(folder, "report.json").read_text())["verified"]


def test_a_model_within_its_budget_is_written_and_reads_back(capsys):
    assert compress("--with", "awq", "group=-1", "ratios=3", "clip=false", "--max-drop", "20%") == 0
    out = capsys.readouterr().out
    assert "perplexity" in out
    assert "KL divergence" in out
    found = report()
    size = next(cost for cost in found["costs"] if cost["key"] == "file.bytes")
    files = sum(path.stat().st_size for path in Path("small").glob("*.safetensors"))
    assert size["predicted"] == size["compressed"] == files
    assert files < 0.5 * size["baseline"]
    assert 0 < found["judged"]["drop"] < 20
    assert found["judged"]["noise"] > 0
    assert found["judged"]["pieces"] == 1200 // 96
    assert found["accepted"] is True
    names = {path.name for path in Path("small").iterdir()}
    assert {"config.json", "tokenizer.json", "report.html", "report.json", "awq.table.json"} <= names
    assert not list(Path().glob(".small*")), "nothing is left beside it"
    assert not list(Path("cache").glob("searches/*")), "a finished search is not kept"
    model, _ = load_model(open_folder("small"))
    assert hasattr(model.layers[0].mlp.up, "dequantized")
    assert compress(*ROUNDED) == 0, "its own folder may be replaced"
    assert not Path("small", "awq.table.json").exists()


def test_a_budget_that_is_too_tight_is_refused_with_the_parts(capsys):
    assert compress(*ROUNDED, "--max-drop", "0.01%") == 3
    caught = capsys.readouterr()
    assert "at most 0.01 % may go" in caught.err.splitlines()[-1]
    assert "--fallback mixed" in caught.err.splitlines()[-1]
    for layer in range(5):
        assert f"layers.{layer}.attention" in caught.out
        assert f"layers.{layer}.mlp" in caught.out
    assert "embed" not in caught.out, "what is only stored in fewer bits is no part"
    assert list(Path().glob("*small*")) == []


def test_a_mixed_model_meets_the_budget_and_says_what_was_kept(capsys):
    assert compress(*ROUNDED, "--max-drop", "0.3%", "--fallback", "mixed") == 0
    found = report()
    kept = [part["name"] for part in found["parts"] if part["kept"]]
    assert 0 < len(kept) < 10
    assert f"kept as they were: {', '.join(kept)}" in " ".join(capsys.readouterr().out.split())
    assert found["judged"]["drop"] <= 0.3
    for size in found["costs"][:2]:
        assert size["predicted"] == size["compressed"], size["key"]
    model, _ = load_model(open_folder("small"))
    for name, module in model.named_modules():
        if name.endswith((".q", ".k", ".v", ".o", ".gate", ".up", ".down")):
            assert hasattr(module, "dequantized") is not name.startswith(tuple(kept)), name
    ignored = json.loads(Path("small/config.json").read_text())["quantization_config"]["ignore"]
    assert any(name.startswith("model.layers.") for name in ignored)


def test_a_budget_out_of_reach_is_refused_though_parts_may_be_kept(capsys):
    assert compress(*ROUNDED, "--max-drop=-5%", "--fallback", "mixed") == 3
    assert "whatever parts are kept" in capsys.readouterr().err.splitlines()[-1]
    assert not Path("small").exists()


def test_a_metric_of_ones_own(capsys):
    Path("mine.py").write_text(
        "import torch\n"
        "def score(model, tokenizer):\n"
        "    ids = torch.tensor([tokenizer.encode('It was a truth universally acknowledged')])\n"
        "    return -float(model.logits(model(ids))[0, :-1].log_softmax(-1).gather(1, ids[0, 1:, None]).mean())\n"
        "score.lower_is_better = True\n"
        "def broken(model, tokenizer):\n"
        "    return 'good'\n"
    )
    assert compress(*ROUNDED, "--metric", "mine.py:score", "--max-drop", "50%") == 0
    found = report()["judged"]
    assert found["name"] == "mine.py:score"
    assert found["lower_is_better"] is True
    assert found["noise"] is None
    capsys.readouterr()
    assert compress(*ROUNDED, "--metric", "mine.py:broken") == 2
    assert "returned 'good'" in capsys.readouterr().err
    assert compress(*ROUNDED, "--metric", "mine.py:nothing") == 2
    assert "no function 'nothing'" in capsys.readouterr().err


def test_accuracy_on_labelled_examples():
    lines = [
        {"prompt": "It was a", "choices": [" truth", " xq zv"], "answer": 0},
        {"prompt": "She had been", "choices": ["kk9 zz", " very happy"], "answer": 1},
        {"prompt": "Anne", "choices": [" was", "###"], "answer": 1},
    ]
    Path("task.jsonl").write_text("\n".join(map(json.dumps, lines)))
    assert compress(*ROUNDED, "--task", "task.jsonl", "--max-drop", "70 points") == 0
    found = report()["judged"]
    assert found["name"] == "accuracy on task.jsonl"
    assert found["unit"] == "points"
    assert found["pieces"] == 3
    assert found["baseline"] == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--with", "awk"], "did you mean 'awq'?"),
        (["--with", "awq", "grup=32"], "group"),
        (["--with", "awq", "group=48"], "group"),
        (["--with", "awq", "group=64"], "does not divide"),
        (["--with", "awq,awq"], "named twice"),
        (["--with", ""], "awq"),
        ([*ROUNDED, "--max-drop", "lots"], "2%"),
        ([*ROUNDED, "--fallback", "hope"], "fallback"),
        ([*ROUNDED, "--metric", "bleu"], "perplexity"),
        ([*ROUNDED, "--metric", "accuracy"], "--task"),
        ([*ROUNDED, "--metric", "cosine"], "is a decoder"),
        ([*ROUNDED, "--calibrate", "nowhere.txt"], "nowhere.txt"),
    ],
)
def test_what_cannot_be_used_is_one_line(capsys, words, said):
    assert compress(*words) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("burnish: ")
    assert said in line
    assert list(Path().glob("*small*")) == []


def damaged(change) -> str:
    folder = Path("model")
    folder.mkdir()
    for file in QUICKSTART.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return str(folder)


def test_weights_that_are_no_numbers_are_named(capsys):
    def change(tensors):
        tensors["model.layers.3.mlp.up_proj.weight"][1, 2] = float("nan")

    assert compress(*ROUNDED, model=damaged(change)) == 2
    assert "layers.3.mlp.up.weight" in capsys.readouterr().err.splitlines()[-1]


def test_a_model_that_is_compressed_already_is_refused(capsys):
    assert compress(*ROUNDED) == 0
    assert compress(*ROUNDED, model="small", out="smaller") == 2
    assert "compressed already (pack-quantized)" in capsys.readouterr().err.splitlines()[-1]
    Path("other").mkdir()
    Path("other/notes.txt").write_text("mine")
    assert compress(*ROUNDED, out="other") == 2
    assert "notes.txt" in capsys.readouterr().err


def test_a_signal_in_the_middle_leaves_nothing(capsys, monkeypatch):
    Path("small").mkdir()
    Path("small/config.json").write_text("{}")
    with monkeypatch.context() as patch:
        patch.setattr(flow.costs, "medians", interrupt)
        assert compress(*ROUNDED) == 130
    assert [path.name for path in Path("small").iterdir()] == ["config.json"]


def test_a_search_that_was_stopped_goes_on(monkeypatch):
    import burnish.compress.awq_search as search

    words = ("--with", "awq", "group=32", "ratios=2", "clip=false")
    assert compress(*words, out="whole") == 0
    real, seen = search.search_layer, []

    def stopped(*given):
        seen.append(given[1])
        if len(seen) == 3:
            raise KeyboardInterrupt
        return real(*given)

    monkeypatch.setattr(search, "search_layer", stopped)
    assert compress(*words) == 130
    (place,) = Path("cache/searches").iterdir()
    assert len(list(place.glob("layer-*.json"))) == 2
    assert compress(*words) == 0
    assert seen == [0, 1, 2, 2, 3, 4], "finished layers are not searched again"
    assert Path("small/awq.table.json").read_text() == Path("whole/awq.table.json").read_text()
    assert not list(Path("cache/searches").iterdir())


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def test_what_is_written_wrong_is_not_kept(monkeypatch):
    real = flow.write_model.__globals__["save_compressed"]

    def swapped(model, config, folder, **more):
        with torch.no_grad():
            model.layers[0].mlp_norm.weight.add_(1)
        written = real(model, config, folder, **more)
        with torch.no_grad():
            model.layers[0].mlp_norm.weight.sub_(1)
        return written

    monkeypatch.setitem(flow.write_model.__globals__, "save_compressed", swapped)
    with pytest.raises(RuntimeError, match="does not read back"):
        compress(*ROUNDED)
    assert list(Path().glob("*small*")) == []


@pytest.mark.sabotage
def test_sabotage_parts_kept_in_the_model_but_not_told_to_the_file_are_noticed(monkeypatch, capsys):
    monkeypatch.setattr(flow, "kept_in", lambda made, kept: frozenset())
    with pytest.raises(AssertionError):
        test_a_mixed_model_meets_the_budget_and_says_what_was_kept(capsys)
