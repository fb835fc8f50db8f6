"""Bad inputs: each ends with one line naming the thing and the fix, exit code 2, no traceback, nothing half-written."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from burnish.cli import code_of
from burnish.config import ModelConfig
from burnish.data.tokenizer import Tokenizer
from burnish.export.safetensors import save_folder
from burnish.models.decoder import Decoder

SMALL = [
    "model.layers=1",
    "model.hidden=32",
    "model.heads=2",
    "model.kv_heads=1",
    "model.ffn=48",
    "model.vocab=300",
    "data.seq=32",
    "train.steps=2",
    "train.global_batch=2",
    "train.micro_batch=1",
    "train.eval_every=0",
    "schedule.warmup_steps=0",
    "data.heldout=[]",
    "export.prompts=[]",
]


def run_on(text: str, *more: str) -> list[str]:
    return ["run", "quickstart", *SMALL, f"data.train={text}", "--out", "out", *more]


def model_folder(where: Path, vocab: int = 300) -> Path:
    """A small exported model with a tokenizer."""
    config = ModelConfig(vocab=vocab, hidden=32, ffn=48, layers=1, heads=2, kv_heads=1, bos=0, eos=0, max_positions=64)
    tokenizer = where / "made.json"
    Tokenizer.train(["some words to learn from, " * 20], vocab).save(tokenizer)
    save_folder(Decoder(config, torch.Generator().manual_seed(0)), config, where / "model", tokenizer=tokenizer)
    tokenizer.unlink()
    return where / "model"


def write(path: str, content: str | bytes) -> str:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def truncated_weights() -> list[str]:
    weights = model_folder(Path()) / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    return ["generate", "model", "words"]


def missing_tensor() -> list[str]:
    from safetensors.torch import load_file, save_file

    weights = model_folder(Path()) / "model.safetensors"
    tensors = load_file(weights)
    del tensors["model.norm.weight"]
    save_file(tensors, weights)
    return ["generate", "model", "words"]


def pickle_weights() -> list[str]:
    folder = model_folder(Path())
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    return ["generate", "model", "words"]


def larger_tokenizer() -> list[str]:
    folder = model_folder(Path())
    words = np.random.default_rng(0).integers(97, 123, (200, 8), dtype=np.uint8).tobytes().decode()
    Tokenizer.train([" ".join(words[i : i + 8] for i in range(0, len(words), 8))], 310).save(folder / "tokenizer.json")
    return ["generate", "model", "words"]


def config_with(**changes: object) -> Callable[[], list[str]]:
    def make() -> list[str]:
        path = model_folder(Path()) / "config.json"
        values = json.loads(path.read_text()) | changes
        path.write_text(json.dumps({key: value for key, value in values.items() if value != "absent"}))
        return ["generate", "model", "words"]

    return make


def init_of_another_shape() -> list[str]:
    model_folder(Path())
    return run_on(write("t.txt", "words " * 200), "train.init=model", "model.ffn=64")


def locked_other_text() -> list[str]:
    write("t.txt", "words and more words, " * 100)
    assert code_of(["train", *run_on("t.txt")[1:]]) == 0
    write("t.txt", "other text altogether, " * 100)
    lock = Path("recipe.lock.yaml")
    lock.write_bytes(Path("out/recipe.lock.yaml").read_bytes())
    return ["run", str(lock), "--out", "again"]


def changed_run() -> list[str]:
    args = run_on(write("t.txt", "words and more words, " * 100))
    assert code_of(args) == 0
    return [*args[:-2], "optim.lr=0.5", *args[-2:]]


def foreign_folder() -> list[str]:
    write("out/thesis.tex", "mine")
    return run_on(write("t.txt", "words " * 200), "--fresh")


def parquet_without_column() -> list[str]:
    parquet, arrow = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
    parquet.write_table(arrow.table({"texts": ["a b c"]}), "t.parquet")
    return run_on("t.parquet")


CASES: dict[str, tuple[Callable[[], list[str]], str]] = {
    "unknown recipe": (lambda: ["plan", "quickstrat"], "quickstart"),
    "unknown verb": (lambda: ["plann", "quickstart"], "plan"),
    "missing argument": (lambda: ["plan"], "recipe"),
    "unknown option": (lambda: ["plan", "quickstart", "--jsn"], "--jsn"),
    "unknown key": (lambda: ["plan", "quickstart", "model.layrs=3"], "layers"),
    "unknown section": (lambda: ["plan", "quickstart", "modle.layers=3"], "model"),
    "override without a value": (lambda: ["plan", "quickstart", "train.steps"], "train.steps=100"),
    "negative steps": (lambda: ["plan", "quickstart", "train.steps=-5"], "train.steps"),
    "steps that are a word": (lambda: ["plan", "quickstart", "train.steps=many"], "train.steps"),
    "rate that is not a number": (lambda: ["plan", "quickstart", "optim.lr=NaN"], "optim.lr"),
    "heads that do not divide": (lambda: ["plan", "quickstart", "model.heads=3"], "heads 3"),
    "key/value heads that do not divide": (lambda: ["plan", "quickstart", "model.kv_heads=3"], "[1, 2, 4]"),
    "rows longer than the model": (lambda: ["plan", "quickstart", "data.seq=4096"], "max_positions"),
    "micro batch above the batch": (lambda: ["plan", "quickstart", "train.micro_batch=99"], "1..4"),
    "warm-up longer than the run": (lambda: ["plan", "quickstart", "train.steps=5"], "warmup_steps"),
    "unknown choice": (lambda: ["plan", "quickstart", "memory.checkpointing=ful"], "'full'"),
    "unknown chip": (lambda: ["plan", "quickstart", "machine.chip=h100-smx"], "h100-sxm"),
    "no CUDA here": (lambda: run_on(write("t.txt", "a b " * 99), "machine.device=cuda"), "cpu"),
    "planned chip cannot run": (lambda: ["run", "llama3-8b-h100", "--out", "out"], "machine.chip"),
    "missing text": (lambda: run_on("nowhere.txt"), "nowhere.txt"),
    "empty text": (lambda: run_on(write("empty.txt", "")), "empty.txt"),
    "binary text": (lambda: run_on(write("b.txt", bytes(range(256)) * 9)), "b.txt"),
    "folder without text": (lambda: run_on(os.path.dirname(write("d/a.png", "x"))), ".jsonl"),
    "wrong field": (lambda: run_on(write("t.jsonl", '{"txet": "a b c"}\n')), "txet"),
    "line that is not JSON": (lambda: run_on(write("t.jsonl", '{"text": "a b c"}\nnot json\n')), "t.jsonl"),
    "column that is not there": (parquet_without_column, "texts"),
    "text in both parts": (
        lambda: run_on(write("t.txt", "words " * 200), "data.heldout=t.txt"),
        "data.heldout",
    ),
    "tokenizer that is none": (
        lambda: run_on(write("t.txt", "words " * 200), f"data.tokenizer={write('tok.json', '{}')}"),
        "tok.json",
    ),
    "vocabulary below the bytes": (lambda: run_on(write("t.txt", "words " * 200), "model.vocab=100"), "257"),
    "unwritable folder": (lambda: [*run_on(write("t.txt", "words " * 200))[:-1], "/proc/here"], "/proc/here"),
    "output is a file": (lambda: [*run_on(write("t.txt", "words " * 200))[:-1], write("file", "x")], "file"),
    "output holds other files": (foreign_folder, "thesis.tex"),
    "run of another recipe": (changed_run, "optim.lr"),
    "locked text that changed": (locked_other_text, "data.train"),
    "start of another shape": (init_of_another_shape, "train.init"),
    "missing YAML": (lambda: ["plan", "mine.yaml"], "mine.yaml"),
    "broken YAML": (lambda: ["plan", write("mine.yaml", "model: [1,")], "mine.yaml"),
    "YAML that is a list": (lambda: ["plan", write("mine.yaml", "- a\n- b\n")], "sections"),
    "YAML without a model": (lambda: ["plan", write("mine.yaml", "train: {steps: 3}\n")], "missing"),
    "Python that does not parse": (lambda: ["plan", write("mine.py", "def f(:\n")], "mine.py"),
    "function that is not there": (lambda: ["plan", write("mine.py", "def mine(): ...\n") + ":main"], "mine"),
    "function that gives no recipe": (lambda: ["plan", write("mine.py", "def mine():\n return 3\n")], "Recipe"),
    "recipe file that exists": (lambda: ["recipe", "new", write("mine.py", "x")[:-3]], "mine.py"),
    "not a run folder": (lambda: ["report", "."], "recipe.lock.yaml"),
    "no model folder": (lambda: ["generate", "nowhere", "words"], "nowhere"),
    "truncated safetensors": (truncated_weights, "model.safetensors"),
    "missing tensor": (missing_tensor, "model.norm.weight"),
    "pickled weights": (pickle_weights, "pytorch_model.bin"),
    "tokenizer larger than the model": (larger_tokenizer, "310"),
    "another family": (config_with(model_type="gpt9"), "llama"),
    "size that is missing": (config_with(hidden_size="absent"), "hidden_size"),
    "activation we do not have": (config_with(hidden_act="gelu"), "hidden_act"),
    "prompt beyond the positions": (
        lambda: ["generate", str(model_folder(Path())), "words", "--max-new-tokens", "999"],
        "64",
    ),
    "probability above one": (
        lambda: ["generate", str(model_folder(Path())), "words", "--top-p", "1.5"],
        "top_p",
    ),
    "unknown claim": (lambda: ["prove", "recipies"], "recipes"),
}


def files_below(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


@pytest.mark.parametrize("name", CASES)
def test_one_line_and_exit_code_2(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BURNISH_CACHE", str(tmp_path / "cache"))
    make, needle = CASES[name]
    arguments = make()
    capsys.readouterr()
    before = files_below(tmp_path)
    code = code_of(arguments)
    error = capsys.readouterr().err.strip().splitlines()
    assert code == 2, error
    said = [line for line in error if line.startswith("burnish: ")]
    assert len(said) == 1
    assert error[-1] == said[0]
    assert needle in said[0]
    assert "Traceback" not in "\n".join(error)
    assert {path for path in files_below(tmp_path) - before if not path.startswith("cache")} == set()


def test_a_missing_extra_is_named(tmp_path: Path) -> None:
    """Without torch the verb says which extra to install; planning works all the same."""
    blocked = "import sys; sys.modules['torch'] = None; from burnish.cli import main; main(sys.argv[1:])"
    command = [sys.executable, "-c", blocked]
    planned = subprocess.run([*command, "plan", "quickstart"], capture_output=True, text=True, cwd=tmp_path)
    assert planned.returncode == 0
    refused = subprocess.run([*command, "run", "quickstart"], capture_output=True, text=True, cwd=tmp_path)
    assert refused.returncode == 2
    assert "pip install 'burnish[train]'" in refused.stderr
    assert len(refused.stderr.strip().splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_what_does_not_fit_ends_with_exit_code_3(capsys: pytest.CaptureFixture) -> None:
    assert code_of(["plan", "llama3-8b-h100", "parallel.dp=1", "memory.checkpointing=none"]) == 3
    assert "does not fit" in capsys.readouterr().err
    assert code_of(["plan", "quickstart", 'memory.checkpointing={"mode": "budget", "budget": "1 KiB"}']) == 3
    assert "the least that can be saved is" in capsys.readouterr().err


def test_random_bytes_as_recipes_never_trace(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    draw = np.random.default_rng(0)
    for number in range(20):
        for ending in (".yaml", ".py"):
            path = tmp_path / f"r{number}{ending}"
            path.write_bytes(draw.integers(0, 256, 80, dtype=np.uint8).tobytes())
            assert code_of(["plan", str(path)]) == 2
            assert len(capsys.readouterr().err.strip().splitlines()) == 1
