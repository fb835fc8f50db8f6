"""Streams of real processes: a full disk, a reader that has left, an encoding without the letter, and signals."""

import os
import random
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from burnish.cli import code_of
from burnish.progress import Screen

BURNISH = [sys.executable, "-m", "burnish"]
PLAN = ["plan", "quickstart"]
FULL = Path("/dev/full")


@pytest.mark.skipif(not FULL.exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("arguments", [["recipe", "list"], PLAN, [*PLAN, "--json"]], ids=" ".join)
def test_a_full_disk_is_one_line_and_exit_code_1(arguments: list[str]) -> None:
    with FULL.open("w") as full:
        done = subprocess.run([*BURNISH, *arguments], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1
    assert done.stderr == "burnish: standard output: No space left on device\n"


@pytest.mark.parametrize("arguments", [["recipe", "list"], PLAN, ["recipe", "show", "quickstart"]], ids=" ".join)
def test_a_reader_that_has_left_is_no_error(arguments: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run([*BURNISH, *arguments], stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")


def test_work_goes_on_when_nobody_watches(monkeypatch: pytest.MonkeyPatch) -> None:
    class Closed:
        encoding = "utf-8"

        def write(self, text: str) -> int:
            raise BrokenPipeError

        def flush(self) -> None:
            raise BrokenPipeError

    screen = Screen()
    screen.console.file = Closed()
    with screen.task("train") as watch:
        watch(1, 2)
        watch(2, 2)
    screen.say("done")
    assert screen.console.quiet


def test_a_letter_that_cannot_be_printed_is_replaced() -> None:
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    for verb in (["plan"], ["recipe", "show"]):
        done = subprocess.run(
            [*BURNISH, *verb, "quickstart", "name=été"], capture_output=True, text=True, env=environment
        )
        assert done.returncode == 0, done.stderr
        assert "?t?" in done.stdout


def test_nothing_said_after_the_help(capsys: pytest.CaptureFixture) -> None:
    for arguments in ([], ["recipe"]):
        assert code_of(arguments) == 2
        printed = capsys.readouterr()
        assert "Usage" in printed.out
        assert "burnish:" not in printed.err


@pytest.mark.parametrize("words", [["\udcff"], ["fine", "\udcff"], ["fine", "--stop", "\udcff"], ["--out=o\udcff"]])
def test_bytes_that_are_no_text_are_refused(words: list[str], capsys: pytest.CaptureFixture) -> None:
    assert code_of(["generate", "nowhere", *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("burnish: argument '")
    assert line.endswith("\\udcff': holds bytes that are no UTF-8 text")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_tokenizing_is_one_line(number: signal.Signals, tmp_path: Path) -> None:
    draw = random.Random(0)
    words = ["".join(draw.choices("abcdefghijklmnop", k=draw.randint(2, 9))) for _ in range(50_000)]
    (tmp_path / "big.txt").write_text(" ".join(draw.choices(words, k=500_000)))
    command = [*BURNISH, "run", "quickstart", "data.train=big.txt", "data.heldout=[]", "--out", "out"]
    environment = os.environ | {"BURNISH_CACHE": str(tmp_path / "cache")}
    process = subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert "quickstart: on " in process.stderr.readline()
    process.send_signal(number)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert error.splitlines()[-1] == "burnish: stopped"
    assert "Traceback" not in error
    assert not (tmp_path / "out").exists()
    assert not list(tmp_path.glob("cache/.*"))


def test_ctrl_c_while_the_program_is_loaded_is_one_line() -> None:
    code = (
        "import sys, os, signal\n"
        "class Finder:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'burnish.cli_plan': os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Finder())\n"
        "from burnish.__main__ import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "burnish: stopped\n")
    entry = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]["scripts"]["burnish"]
    assert entry == "burnish.__main__:main"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_exporting_is_one_line(number: signal.Signals) -> None:
    code = (
        "import time, burnish.finished as finished; from burnish.cli import main; "
        "finished.export = lambda *_: (print('exporting', flush=True), time.sleep(60)); main(['export', 'run'])"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "exporting\n"
    process.send_signal(number)
    _, error = process.communicate(timeout=30)
    assert (process.returncode, error) == (128 + number, "burnish: stopped\n")
