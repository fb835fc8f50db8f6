"""Claims measured in a process of their own: verdicts, failures said in a line, and measurements that are stopped."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from burnish.practice import live
from burnish.prove.claim import Verdict

VERDICT = Verdict(
    claim="zero",
    statement="s",
    varied="v",
    held="h",
    expected="1",
    measured="2",
    holds=False,
    why="w",
    source="x",
    code="c",
    seconds=3.0,
)


def measured(monkeypatch: pytest.MonkeyPatch, script: str) -> live.Measurement:
    """A measurement whose process runs a script in place of the program."""
    popen = subprocess.Popen
    monkeypatch.setattr(live.subprocess, "Popen", lambda command, **more: popen([sys.executable, "-c", script], **more))
    return live.start("zero")


def shown(monkeypatch: pytest.MonkeyPatch, script: str) -> live.Shown:
    measurement = measured(monkeypatch, script)
    measurement.process.wait(20)
    assert not measurement.running
    return live.result(measurement)


def test_a_claim_that_does_not_hold_is_a_result(monkeypatch: pytest.MonkeyPatch) -> None:
    text = json.dumps([VERDICT.model_dump()])
    assert shown(monkeypatch, f"print({text!r}); raise SystemExit(1)") == live.Shown("zero", VERDICT)


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (
            "import no_such_package.part",
            "it needs no_such_package, which is not installed; install it with: pip install",
        ),
        ("import sys; print('burnish: it is full', file=sys.stderr); sys.exit(2)", "measured: it is full"),
        ("raise SystemExit(7)", "it ended with exit code 7"),
        ("print('[]')", "it ended with exit code 0"),
        ("print('[{}]')", "it ended with exit code 0"),
    ],
)
def test_what_went_wrong_is_one_line(monkeypatch: pytest.MonkeyPatch, script: str, said: str) -> None:
    found = shown(monkeypatch, script)
    assert found.verdict is None
    assert found.said.startswith("claim 'zero' could not be measured: ")
    assert said in found.said
    assert "\n" not in found.said


def test_what_is_stopped_ends_with_all_that_it_started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    note = tmp_path / "child"
    child = "import time; time.sleep(60)"
    script = (
        "import pathlib, subprocess, sys; p = subprocess.Popen([sys.executable, '-c', {child!r}]); "
        "f = pathlib.Path({note!r}); f.with_suffix('.new').write_text(str(p.pid)); f.with_suffix('.new').rename(f); p.wait()"
    )
    measurement = measured(monkeypatch, script.format(child=child, note=str(note)))
    end = time.monotonic() + 20
    while not note.exists():
        assert time.monotonic() < end
        time.sleep(0.01)
    assert measurement.running
    live.stop(measurement)
    assert not measurement.running
    number = int(note.read_text())
    while alive(number):
        assert time.monotonic() < end
        time.sleep(0.01)


def alive(number: int) -> bool:
    """Whether a process runs: one that has ended and waits to be noticed does not."""
    try:
        os.kill(number, 0)
        return Path(f"/proc/{number}/stat").read_text().split(") ")[-1][0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False
