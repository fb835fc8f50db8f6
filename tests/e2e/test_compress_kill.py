"""A compression that is killed or stopped at any moment: nothing half-written, and the same command ends with the same files."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from burnish.cli import code_of
from burnish.compress import flow
from burnish.load.folder import open_folder
from burnish.load.model import load_model
from compressing import QUICKSTART, excerpts

WORDS = (
    *("compress", str(QUICKSTART), "--with", "awq", "group=32", "ratios=3"),
    *("--calibrate", "calibrate.txt", "--text", "judge.txt", "--rows", "4", "--length", "64", "--tokens", "400"),
    *("--out", "small", "--state", "state"),
)
TOLD = ("report.json", "report.html")  # what has times in it
STOPS = {
    signal.SIGINT: (130, -signal.SIGINT),
    signal.SIGTERM: (143, -signal.SIGTERM),
    signal.SIGKILL: (-signal.SIGKILL,),
}


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    return excerpts(tmp_path_factory.mktemp("texts"))


@pytest.fixture
def place(tmp_path, monkeypatch, texts):
    for text in texts:
        (tmp_path / text.name).symlink_to(text)
    monkeypatch.setenv("BURNISH_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def start() -> subprocess.Popen[bytes]:
    own = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "burnish", *WORDS], env=own, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )


def written(folder: str = "small") -> dict[str, str]:
    """Digests of the files that hold no times."""
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in Path(folder).iterdir()
        if path.name not in TOLD
    }


def whole(folder: str = "small") -> None:
    """A folder that is there can be read, and has all that one has."""
    load_model(open_folder(folder))
    assert {"config.json", "tokenizer.json", "awq.table.json", *TOLD} <= {path.name for path in Path(folder).iterdir()}


@pytest.mark.slow
@pytest.mark.parametrize("number", STOPS, ids=lambda number: number.name)
def test_stopped_at_random_moments_and_begun_again(place, number):
    """Six stops, spread over all a run takes, each followed by a look at what is there."""
    began = time.monotonic()
    assert start().wait() == 0
    seconds = time.monotonic() - began
    wanted = written()
    Path("small").rename("first")
    draw, stopped = random.Random(int(number)), 0
    for share in range(6):
        process = start()
        try:
            _, said = process.communicate(timeout=seconds * (share + draw.random()) / 6)
        except subprocess.TimeoutExpired:
            process.send_signal(number)
            _, said = process.communicate(timeout=120)
        if process.returncode:
            stopped += 1
            assert process.returncode in STOPS[number], said.decode()
            if process.returncode > 0:
                assert said.decode().splitlines()[-1] == "burnish: stopped"
        if Path("small").exists():
            whole()
            assert written() == wanted
        if number != signal.SIGKILL:
            assert not list(Path().glob(".small*")), "nothing half made is left"
    assert stopped, "at least one came in the middle"
    assert start().wait() == 0
    assert written() == wanted
    assert not list(Path().glob(".small*")), "what a kill left is cleared away"
    assert list(Path("state").iterdir()) == [], "a search is kept until its model is written"


def run(*more: str) -> int:
    return code_of([*WORDS, *more])


def test_a_search_is_kept_until_its_model_is_written(place, monkeypatch, capsys):
    """Over its budget, then stopped while judging: the search's layers stay, and what is written is the same to the byte."""
    import burnish.compress.awq_search as search

    assert run() == 0
    wanted = written()
    Path("small").rename("first")
    assert run("--max-drop=-50%") == 3
    (kept,) = Path("state").iterdir()
    assert len(list(kept.glob("layer-*.json"))) == 5
    monkeypatch.setattr(search, "search_layer", _interrupt)  # no layer is searched again
    with monkeypatch.context() as patch:
        patch.setattr(flow.costs, "medians", _interrupt)
        assert run() == 130
    assert capsys.readouterr().err.splitlines()[-1] == "burnish: stopped"
    assert not list(Path().glob("*small*"))
    assert run() == 0
    assert written() == wanted
    assert not list(Path("state").iterdir())


def test_a_folder_that_a_kill_left_half_written_is_taken_over(place):
    left = Path(".small.writing")
    left.mkdir()
    (left / "model.safetensors").write_bytes(b"half of it")
    assert run() == 0
    whole()
    assert not left.exists()


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt
