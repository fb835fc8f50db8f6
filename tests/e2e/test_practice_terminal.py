"""The practice test as a person takes it: in a terminal of sixty columns, over a pipe, stopped and gone on with."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from burnish.practice import bank
from burnish.practice.menu import LETTERS as MENU_LETTERS

pty = pytest.importorskip("pty", reason="there are no such terminals here")
BANK = bank.shipped()
COLUMNS = 60
PRACTICE = [sys.executable, "-m", "burnish", "practice"]


class Terminal:
    """A terminal with the program in it: what it shows, and keys for it."""

    def __init__(self, process: subprocess.Popen[bytes], number: int) -> None:
        self.process, self.number, self.shown = process, number, ""

    def until(self, text: str, seconds: float = 60) -> str:
        """Read until a text is shown; gives what came with it, and forgets it."""
        end = time.monotonic() + seconds
        while text not in self.shown:
            assert time.monotonic() < end, f"no {text!r} in:\n{self.shown}"
            if select.select([self.number], [], [], 0.2)[0]:
                try:
                    read = os.read(self.number, 1 << 16)
                except OSError:  # the program has ended
                    read = b""
                assert read, f"ended without {text!r}:\n{self.shown}"
                self.shown += read.decode().replace("\r\n", "\n")
        place = self.shown.index(text) + len(text)
        found, self.shown = self.shown[:place], self.shown[place:]
        return found

    def press(self, keys: str) -> None:
        os.write(self.number, keys.encode())

    def end(self) -> tuple[int, str]:
        """Wait for the end; the exit code and what is still shown."""
        rest = self.shown
        while True:
            try:
                read = os.read(self.number, 1 << 16)
            except OSError:
                break
            if not read:
                break
            rest += read.decode().replace("\r\n", "\n")
        return self.process.wait(30), rest


@contextmanager
def terminal(state: Path, *words: str) -> Iterator[Terminal]:
    ours, theirs = pty.openpty()
    env = {**os.environ, "XDG_STATE_HOME": str(state), "COLUMNS": str(COLUMNS), "TERM": "xterm"}
    process = subprocess.Popen(
        [*PRACTICE, *words], stdin=theirs, stdout=theirs, stderr=theirs, env=env, start_new_session=True
    )
    os.close(theirs)
    try:
        yield Terminal(process, ours)
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def right_key(shown: str) -> str:
    """The letter of the right answer of the question on the screen."""
    flat = " ".join(shown.split())
    (question,) = [q for q in BANK.questions if " ".join(q.stem.split()) in flat]
    text = question.options[question.answer].text
    (found,) = re.findall(rf"\b([A-D]) {re.escape(text)}(?= [A-D] |$)", flat)
    return found


def test_a_whole_session_with_a_stop_and_a_measurement(tmp_path: Path) -> None:
    with terminal(tmp_path, "--subject", "mapping", "--seed", "11") as first:
        assert "Short set on mapping: 6 questions." in first.until("Question 1 of 6")
        time.sleep(0.3)
        first.press("x\x1b[B")  # no keys of ours: the second one is an arrow
        shown = first.until("Answer with A, B, C or D")
        first.until("Q saves and leaves.")
        key = right_key(shown.split("· Mapping a model onto nodes")[1].split("Answer with")[0])
        first.press(key.lower())
        explained = first.until("S: show me (mapping). Enter: go on.")
        assert f"Right: {key}." in explained
        assert explained.count("wrong: ") == 3
        assert explained.count("right: ") == 1
        assert "Source: " in explained
        first.press("s")
        measured = first.until("S: show me again.")
        assert "mapping: holds here, in" in measured
        assert re.search(r"answer: .+measured: .*pick tp.+expected: ", " ".join(measured.split()))
        first.press("\n")
        first.until("Question 2 of 6")
        first.process.send_signal(signal.SIGINT)
        code, rest = first.end()
        assert code == 130
        assert "Saved after 1 of 6. To go on:\n  burnish practice --subject mapping\n" in rest
        longest = max(map(len, re.split(r"[\r\n]", shown + explained + measured + rest)))
        assert longest <= COLUMNS
    with terminal(tmp_path, "--subject", "mapping") as second:
        assert "Going on after question 1 of 6; --fresh begins anew." in second.until("Question 2 of 6")
        for number in range(2, 7):
            second.until("\n  D  ")
            time.sleep(0.02)
            second.press("a")
            second.until("Enter: go on.")
            second.press("\r")
            if number < 6:
                second.until(f"Question {number + 1} of 6")
        code, rest = second.end()
    assert code == 0
    right = int(re.findall(r"Score: (\d) of 6 right", rest)[0])
    kept = json.loads((tmp_path / "burnish" / "practice.json").read_text())["banks"]["shipped"]
    assert right == kept["finished"][0]["right"] >= 1
    assert len(kept["wrong"]) == 6 - right
    assert kept["open"] == {}


def piped(state: Path, keys: str, *words: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "XDG_STATE_HOME": str(state), "COLUMNS": "100"}
    return subprocess.run([*PRACTICE, *words], input=keys, env=env, capture_output=True, text=True, timeout=120)


def test_over_a_pipe_lines_are_keys_and_no_torch_is_loaded(tmp_path: Path) -> None:
    done = piped(tmp_path, "a\n\nB\n\n", "--mixed", "--seed", "4")
    assert (done.returncode, done.stderr) == (0, "")
    assert "Question 3 of 12" in done.stdout
    assert done.stdout.endswith("Saved after 2 of 12. To go on:\n  burnish practice --mixed\n")
    assert "\x1b" not in done.stdout
    assert "\r" not in done.stdout
    code = "import sys; from burnish.cli import code_of; code_of(['practice', '--full', '1']); print('torch' in sys.modules)"
    env = {**os.environ, "XDG_STATE_HOME": str(tmp_path)}
    ran = subprocess.run([sys.executable, "-c", code], input="a\n", env=env, capture_output=True, text=True, timeout=60)
    assert ran.stdout.endswith("False\n")


def test_the_menu_leads_to_sets_wrong_ones_and_labs(tmp_path: Path) -> None:
    menu = piped(tmp_path, "d\nc\na\n\nb\n\n")
    assert "Question 1 of 6 · Flash attention" in menu.stdout
    piped(tmp_path, "a\n\n" * 12, "--mixed", "--seed", "4")  # one key throughout: some of them are wrong
    again = piped(tmp_path, "q\n", "--wrong", "--fresh")
    assert "What was wrong before: " in again.stdout
    labs = piped(tmp_path, f"{MENU_LETTERS[bank.claims().index('mapping')]}\nq\n", "--labs")
    assert labs.returncode == 0
    assert "mapping: holds here" in " ".join(labs.stdout.split())
    assert "source:" in labs.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--subject", "zerro"], "--subject zerro: did you mean 'zero'?"),
        (["--full", "3"], "--full 3: use 1 or 2"),
        (["--wrong"], "--wrong: nothing was answered wrong so far; use --mixed or --subject"),
        (["--mixed", "--full", "1"], "--full 1, --mixed: give one of them"),
        (["--web", "--labs"], "--web: the page has a menu; leave --labs out"),
        (
            ["--bank", "none.yaml"],
            "none.yaml: cannot be read (No such file or directory); give a YAML file of questions",
        ),
    ],
)
def test_what_cannot_be_is_said_in_one_line(tmp_path: Path, words: list[str], said: str) -> None:
    done = piped(tmp_path, "", *words)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"burnish: {said}\n")


def test_damaged_progress_is_named_and_a_folder_that_takes_none_is_said(tmp_path: Path) -> None:
    (tmp_path / "burnish").mkdir()
    (tmp_path / "burnish" / "practice.json").write_text("{")
    done = piped(tmp_path, "q\n", "--mixed")
    assert done.stderr.count("\n") == 1
    assert "set aside as practice.json.damaged-1, beginning anew" in done.stderr
    (tmp_path / "file").touch()
    lost = piped(tmp_path / "file", "a\n\n", "--mixed")
    assert (lost.returncode, lost.stdout, lost.stderr.count("\n")) == (2, "", 1)
    assert "practice.json: cannot be read (Not a directory)" in lost.stderr
