"""burnish speculate advise: what is measured, what a script reads, and what is wrong in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from burnish.cli import code_of
from burnish.serve.speculative.gate import LENGTHS
from served_model import chat_model

SIZES = [
    *("--runner", "torch", "--memory", "64MiB", "--text", "asset:austen/emma"),
    *("--prompts", "3", "--prompt-tokens", "20", "--new-tokens", "12"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chat_model(tmp_path_factory.mktemp("advised") / "fox")


def test_a_model_as_its_own_draft_is_always_right(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["speculate", "advise", str(folder), "--draft", str(folder), "--rows", "1,2", *SIZES]
    assert code_of([*asked, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    seen = told["acceptance"]
    assert seen["pooled"] == 1.0
    assert seen["tried"] == seen["stood"]
    assert len(seen["tried"]) == LENGTHS[-1]
    assert [row["rows"] for row in told["rows"]] == [1, 2]
    assert all(set(row["speeds"]) == {str(k) for k in LENGTHS} for row in told["rows"])
    assert all((row["measured"] is not None) == row["pays"] for row in told["rows"])


def test_a_look_up_is_told_in_a_table_and_may_miss_what_was_asked(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["speculate", "advise", str(folder), "--draft", "ngram", "--rows", "2", "--at-least", "9", *SIZES]
    assert code_of(asked) == 3
    out, err = capsys.readouterr()
    assert "2 rows: " in out
    assert err.splitlines()[-1].startswith("burnish: --at-least 9: ")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--rows", "0"), "--rows 0: give numbers from 1 to 1024"),
        (("--rows", "two"), "--rows two"),
        (("--prompt-tokens", "600"), "--prompt-tokens 600: with --new-tokens 12 the model has room for"),
        (("--text", "nowhere.txt"), "nowhere.txt: no such file or folder"),
        (("--draft", "skip:4"), "skip:4: the model has 2 layers"),
        (("--memory", "many"), "--memory many"),
    ],
)
def test_what_is_wrong_is_told_in_one_line(
    folder: Path, words: tuple[str, str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert code_of(["speculate", "advise", str(folder), "--draft", "ngram", *SIZES, *words]) == 2
    out, err = capsys.readouterr()
    assert said in err
    assert (out, len(err.splitlines())) == ("", 1)
