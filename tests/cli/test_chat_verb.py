"""burnish chat over a pipe and at a terminal: answers, commands, what is kept, what is said when something is wrong."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from burnish.streams import printable
from served_model import chat_model

QUIET = os.environ | {"OMP_NUM_THREADS": "1", "NO_COLOR": "1", "COLUMNS": "200", "TERM": "xterm"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chat_model(tmp_path_factory.mktemp("talk") / "fox")


def command(folder: Path, *options: str) -> list[str]:
    chosen = ("--runner", "torch", "--memory", "8MiB", "--max-new-tokens", "12", *options)
    return [sys.executable, "-m", "burnish", "chat", str(folder), *chosen]


def piped(folder: Path, text: str, *options: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(folder, *options), input=text, capture_output=True, text=True, env=QUIET, cwd=cwd, timeout=120
    )


def test_over_a_pipe_answers_go_to_one_stream_and_words_about_them_to_another(folder: Path, tmp_path: Path) -> None:
    lines = "What does the fox\\\nand the dog do?\nAgain?\n/save talk.jsonl\n/nothing\n/save\n"
    ran = piped(folder, lines, "--verbose", "--system", "Be a fox.", cwd=tmp_path)
    assert ran.returncode == 4  # a command was not understood, where nobody sits to see it
    kept = json.loads((tmp_path / "talk.jsonl").read_text())["messages"]
    assert [message["role"] for message in kept] == ["system", "user", "assistant", "user", "assistant"]
    assert kept[1]["content"] == "What does the fox\nand the dog do?"
    answers = "".join(one["content"] + "\n" for one in kept if one["role"] == "assistant")
    assert printable(ran.stdout).split() == printable(answers).split()
    assert "\x07" in answers  # a letter that steers a terminal stays in the file and off the screen
    assert "\x07" not in ran.stdout
    assert "\x1b" not in ran.stdout + ran.stderr
    said = ran.stderr.splitlines()
    assert said[0].startswith("cut: the answer reached its most tokens")
    assert any("0 of them found" in line for line in said)
    found = [int(line.split(", ")[1].split()[0]) for line in said if "of them found" in line]
    assert found[0] == 0 < found[1]  # the second question's prompt begins like the first one and its answer
    assert any("/nothing: is no command; there are /reset" in line for line in said)
    assert any("/save: give the name of a file" in line for line in said)


def test_the_same_seed_gives_the_same_conversation(folder: Path) -> None:
    one, two, other = (piped(folder, "Jump!\nOver?\n", "--seed", seed).stdout for seed in ("3", "3", "4"))
    assert one == two != other


def test_a_draft_changes_no_answer_and_what_came_of_it_is_said(folder: Path) -> None:
    plain, drafted = (piped(folder, "Jump!\nOver?\n", "--exact", *draft) for draft in ((), ("--draft", "ngram")))
    assert (drafted.returncode, drafted.stdout) == (0, plain.stdout)
    assert drafted.stderr.splitlines()[-1].startswith("draft ngram: ")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--weights", "q5"), "--weights q5: use float or q4"),
        (("--memory", "1KiB"), "give at least that"),
        (("--top-p", "0"), "top_p 0.0: more than 0"),
    ],
)
def test_wrong_options_are_told_in_one_line(folder: Path, options: tuple[str, ...], said: str) -> None:
    ran = piped(folder, "Jump!\n", *options)
    assert (ran.returncode, ran.stdout, len(ran.stderr.splitlines())) == (2, "", 1)
    assert said in ran.stderr


def test_at_a_terminal_an_interrupt_stops_the_answer_and_the_end_of_input_leaves(folder: Path) -> None:
    ours, theirs = pty.openpty()
    long = command(folder, "--max-new-tokens", "400", "--temperature", "0")
    process = subprocess.Popen(long, stdin=theirs, stdout=theirs, stderr=theirs, env=QUIET, start_new_session=True)
    os.close(theirs)
    seen = ""

    def until(words: str) -> None:
        nonlocal seen
        end = time.monotonic() + 60
        while words not in seen and select.select([ours], [], [], max(0, end - time.monotonic()))[0]:
            seen += os.read(ours, 65536).decode(errors="replace")
        assert words in seen, seen

    until("/help helps")
    until("> ")
    seen = ""
    os.write(ours, b"Jump!\n")
    until("Jump!\r\n")
    until("\n")
    time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    until("stopped")
    seen = seen.partition("stopped")[2]
    until("> ")
    os.write(ours, b"\x04")
    until("1 answer,")
    assert process.wait(30) == 0
    os.close(ours)
