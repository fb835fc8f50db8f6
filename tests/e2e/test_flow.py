"""A recipe from the command line to a report, as a user runs it: real text, real processes, real files."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SMALL = [
    "quickstart",
    "model.layers=2",
    "model.hidden=64",
    "model.ffn=160",
    "model.vocab=512",
    "data.train=asset:austen/northanger_abbey",
    "data.heldout=[]",
    "data.heldout_fraction=0.05",
    "data.seq=96",
    "train.steps=24",
    "train.global_batch=6",
    "train.micro_batch=4",
    "train.eval_every=12",
    "train.checkpoint_every=5",
    "schedule.warmup_steps=3",
    "export.sample_tokens=20",
    "machine.threads=1",
]


def burnish(*arguments: str, cwd: Path, check: bool = True) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "burnish", *arguments], cwd=cwd, capture_output=True, text=True, timeout=240
    )
    assert not check or done.returncode == 0, done.stderr
    return done


def losses(run: Path) -> list[float]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if line["kind"] == "step"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which `burnish run` has been to its end, in `first`."""
    place = tmp_path_factory.mktemp("flow")
    burnish("run", *SMALL, "--out", "first", cwd=place)
    return place


def test_run_writes_every_record(finished: Path) -> None:
    run = finished / "first"
    report = json.loads((run / "report.json").read_text())
    assert report["status"] == "done"
    assert len(report["curve"]) == 24
    assert [e["step"] for e in report["evals"]] == [12, 24]
    assert report["checks"]["weights_equal"] is True
    assert report["checks"]["logits_max_abs_difference"] == 0.0
    rows = {row["key"]: row for row in report["rows"]}
    for key in ("parameters", "memory.parameters", "memory.gradients", "memory.optimizer", "flops.step"):
        assert rows[key]["predicted"] == rows[key]["measured"], key
    assert rows["memory.saved"]["predicted"] == pytest.approx(rows["memory.saved"]["measured"], rel=0.02)
    assert report["quality"]["baseline_bits_per_byte"] > 0
    assert "<script src" not in (run / "report.html").read_text()
    assert sorted(p.name for p in (run / "model").iterdir()) == [
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]


def test_a_lock_file_repeats_a_run_bit_for_bit(finished: Path) -> None:
    burnish("train", "first/recipe.lock.yaml", "--out", "again", cwd=finished)
    assert losses(finished / "again") == losses(finished / "first")


def test_killed_and_resumed_runs_have_the_same_losses(finished: Path) -> None:
    command = [sys.executable, "-m", "burnish", "run", "first/recipe.lock.yaml", "--out", "killed"]
    for step in (7, 16):
        process = subprocess.Popen(command, cwd=finished, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        metrics = finished / "killed" / "metrics.jsonl"
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and process.poll() is None:
            if metrics.exists() and metrics.read_bytes().count(b'"kind": "step"') >= step:
                break
            time.sleep(0.005)
        process.kill()
        process.wait()
    burnish("run", "first/recipe.lock.yaml", "--out", "killed", cwd=finished)
    assert losses(finished / "killed") == losses(finished / "first")
    report = json.loads((finished / "killed" / "report.json").read_text())
    assert report["status"] == "done"
    assert len(report["curve"]) == 24


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_resumably(finished: Path, number: signal.Signals, tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "burnish",
        "train",
        str(finished / "first" / "recipe.lock.yaml"),
        "train.steps=4000",
    ]
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        [*command, "--out", "run"], cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True
    )
    metrics = tmp_path / "run" / "metrics.jsonl"
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not (metrics.exists() and metrics.read_bytes().count(b"\n") >= 2):
        time.sleep(0.01)
    process.send_signal(number)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert error.strip().splitlines()[-1].startswith("burnish: stopped after step ")
    assert list((tmp_path / "run" / "checkpoints").glob("step-*"))


def test_the_model_of_a_run_generates(finished: Path) -> None:
    settings = ("--max-new-tokens", "12", "--temperature", "0.8", "--seed", "3")
    one = burnish("generate", "first", "The carriage", "She said that", *settings, cwd=finished).stdout
    two = burnish("generate", "first/model", "The carriage", "She said that", *settings, cwd=finished).stdout
    assert one == two
    assert one.startswith("The carriage")
    assert "She said that" in one


def test_export_and_report_can_be_made_again(finished: Path) -> None:
    shown = burnish("export", "first", "--to", "elsewhere", cwd=finished).stdout
    assert "weights equal: yes" in shown
    first, again = finished / "first" / "model", finished / "elsewhere"
    assert (first / "model.safetensors").read_bytes() == (again / "model.safetensors").read_bytes()
    page = finished / "first" / "report.html"
    page.unlink()
    burnish("report", "first", cwd=finished)
    assert page.exists()


def test_train_then_run_finishes_without_training_again(finished: Path) -> None:
    burnish("train", "first/recipe.lock.yaml", "--out", "two_steps", cwd=finished)
    done = burnish("run", "first/recipe.lock.yaml", "--out", "two_steps", cwd=finished)
    assert "goes on after step 24" in done.stderr
    report = json.loads((finished / "two_steps" / "report.json").read_text())
    assert report["status"] == "done"
    assert {row["key"]: row["measured"] for row in report["rows"]}["flops.step"] > 0


def test_skipped_steps_of_fp16_are_noted(tmp_path: Path) -> None:
    """A scale far too large: steps are left out until it has halved often enough, and the records say how many."""
    scaled = 'precision={"compute": "fp16", "loss_scale": 32768}'
    burnish("train", *SMALL, scaled, "train.steps=14", "--out", "run", cwd=tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    skipped = sum(line.get("grad_norm") == 0.0 for line in lines)
    assert 2 <= skipped < 14
    (note,) = [n for n in json.loads((tmp_path / "run" / "records.json").read_text())["notes"] if "fp16" in n]
    assert note.startswith(f"fp16: steps skipped because gradients overflowed: {skipped}; loss scale at the end ")


def test_recipe_new_makes_a_recipe_that_runs(tmp_path: Path) -> None:
    burnish("recipe", "new", "my-first", cwd=tmp_path)
    shown = burnish("recipe", "show", "my_first.py", "train.steps=77", cwd=tmp_path).stdout
    assert "steps: 77" in shown
    assert "name: my-first" in shown
    assert burnish("recipe", "validate", "my_first.py", cwd=tmp_path).stdout == "my-first: valid\n"


def test_two_runs_do_not_share_a_folder(finished: Path) -> None:
    command = [sys.executable, "-m", "burnish", "train", "first/recipe.lock.yaml", "train.steps=4000", "--out", "busy"]
    first = subprocess.Popen(command, cwd=finished, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    metrics = finished / "busy" / "metrics.jsonl"
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not metrics.exists():
        time.sleep(0.01)
    second = burnish(*command[3:], cwd=finished, check=False)
    fresh = burnish(*command[3:], "--fresh", cwd=finished, check=False)
    first.kill()
    first.wait()
    for refused in (second, fresh):
        assert refused.returncode == 2
        assert "another process is running in it" in refused.stderr.splitlines()[-1]
    assert metrics.exists()


def test_export_refuses_a_damaged_checkpoint(finished: Path) -> None:
    """An older checkpoint in its place would be another model than the report judged."""
    copy = finished / "damaged"
    shutil.copytree(finished / "first", copy)
    newest = max((copy / "checkpoints").glob("step-*"))
    before = (copy / "model" / "model.safetensors").read_bytes()
    (newest / "model.safetensors").write_bytes(b"short")
    refused = burnish("export", "damaged", cwd=finished, check=False)
    assert refused.returncode == 2
    assert newest.name in refused.stderr
    assert len(refused.stderr.strip().splitlines()) == 1
    assert (copy / "model" / "model.safetensors").read_bytes() == before
