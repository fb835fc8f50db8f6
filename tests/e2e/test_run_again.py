"""A run given again: finished it is only reported, stopped it is reported as far as it got and goes on with what it had."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from test_flow import SMALL, burnish, losses


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished run in `first`."""
    place = tmp_path_factory.mktemp("again")
    burnish("run", *SMALL, "--out", "first", cwd=place)
    return place


def report_of(run: Path) -> dict:
    return json.loads((run / "report.json").read_text())


def killed(place: Path, out: str, step: int, number: signal.Signals) -> Path:
    """A training run of many steps, stopped by a signal after `step` of them."""
    command = [sys.executable, "-m", "burnish", "run", *SMALL, "train.steps=4000", "--out", out]
    process = subprocess.Popen(command, cwd=place, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    metrics = place / out / "metrics.jsonl"
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not (metrics.exists() and metrics.read_bytes().count(b"\n") >= step):
        time.sleep(0.005)
    process.send_signal(number)
    process.wait(timeout=60)
    return place / out


def test_a_finished_run_is_reported_again_and_fresh_starts_it_anew(place: Path) -> None:
    shutil.copytree(place / "first", place / "copy")
    run = place / "copy"
    before = {path: path.read_bytes() for path in sorted(run.rglob("*")) if path.is_file()}
    for verb in ("run", "train"):
        done = burnish(verb, *SMALL, "--out", "copy", cwd=place)
        assert "this run is done already; --fresh starts it again" in done.stderr
        assert done.stderr.splitlines()[-1] == "report: copy/report.html"
        assert "Peak memory" in done.stdout
        assert {path: path.read_bytes() for path in sorted(run.rglob("*")) if path.is_file()} == before
    fresh = burnish("train", *SMALL, "--out", "copy", "--fresh", cwd=place)
    assert "already" not in fresh.stderr
    assert not (run / "model").exists()
    assert losses(run) == losses(place / "first")


def test_training_alone_is_said_to_be_trained(place: Path) -> None:
    burnish("train", *SMALL, "--out", "trained", cwd=place)
    run = place / "trained"
    assert report_of(run)["status"] == json.loads((run / "records.json").read_text())["status"] == "trained"
    assert "trained, not exported" in (run / "report.html").read_text()
    assert "this run is trained already" in burnish("train", *SMALL, "--out", "trained", cwd=place).stderr
    refused = burnish("generate", "trained", "words", cwd=place, check=False)
    assert refused.returncode == 2
    assert "`burnish export trained`" in refused.stderr
    burnish("run", *SMALL, "--out", "trained", cwd=place)
    assert report_of(run)["status"] == "done"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_stopped_run_is_reported_as_far_as_it_got(place: Path, number: signal.Signals) -> None:
    run = killed(place, f"stopped-{number.name}", 7, number)
    shown = burnish("report", run.name, cwd=place).stdout
    report = report_of(run)
    assert report["status"] == "partly"
    assert len(report["curve"]) >= 7
    assert any(" of 4000 steps are done" in note for note in report["notes"])
    assert "planned, not run" not in (run / "report.html").read_text()
    assert "Gradients" in shown
    rows = {row["key"]: row for row in report["rows"]}
    assert rows["memory.peak"]["measured"] > 0  # kept with the checkpoint after step 5
    assert rows["memory.gradients"]["measured"] == rows["memory.gradients"]["predicted"]


def test_a_run_killed_after_its_last_step_keeps_what_it_measured(place: Path) -> None:
    """As it stands when the export is killed: checkpoints and records up to the last step, no model."""
    whole, cut = place / "first", place / "cut"
    code = (
        "import os, sys, burnish.run as run; run.finish = lambda *a: os._exit(9); "
        "from burnish.cli import main; main(sys.argv[1:])"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code, "run", *SMALL, "--out", "cut"], cwd=place, capture_output=True, env=os.environ
    )
    assert ended.returncode == 9
    assert json.loads((cut / "records.json").read_text())["status"] == "partly"
    done = burnish("run", *SMALL, "--out", "cut", cwd=place)
    assert "goes on after step 24" in done.stderr
    measured, expected = ({r["key"]: r["measured"] for r in report_of(run)["rows"]} for run in (cut, whole))
    assert {key for key, value in measured.items() if value is not None} == {
        key for key, value in expected.items() if value is not None
    }
    assert set(report_of(cut)["seconds"]) == set(report_of(whole)["seconds"])


def test_records_that_cannot_be_read_say_what_to_do(place: Path) -> None:
    shutil.copytree(place / "first", place / "damaged")
    (place / "damaged" / "records.json").write_text('{"status": "finished"}')
    for verb in (["run", *SMALL, "--out", "damaged"], ["report", "damaged"]):
        refused = burnish(*verb, cwd=place, check=False)
        assert refused.returncode == 2
        (line,) = refused.stderr.splitlines()
        assert "records.json: damaged (status: " in line
        assert "delete it and run the recipe again" in line
    (place / "damaged" / "records.json").unlink()
    burnish("run", *SMALL, "--out", "damaged", cwd=place)
    assert report_of(place / "damaged")["status"] == "done"
