"""burnish bench serve: a server of its own, a table or JSON, and what is wrong in one line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from burnish.cli import code_of
from served_model import chat_model


def test_a_model_is_served_for_the_time_of_the_load(tmp_path: Path) -> None:
    folder = chat_model(tmp_path / "fox")
    options = [
        "--serve",
        "--runner torch --memory 8MiB --rows 4",
        "--requests",
        "12",
        "--rate",
        "100",
        "--shared",
        "16",
    ]
    sizes = ["--prompt-lengths", "20-60", "--new-lengths", "3,5", "--ignore-eos", "--api-key", "a-key"]
    command = [sys.executable, "-m", "burnish", "bench", "serve", str(folder), *options, *sizes, "--json"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    told = json.loads(ran.stdout)
    assert (told["model"], told["answered"], told["failures"]) == ("fox", 12, {})
    assert 36 <= told["new_tokens"] <= 60
    assert told["prompt_tokens_found"] >= 16  # the beginning that all have in common
    assert told["first_token"]["p50"] <= told["whole"]["p50"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "name a model to serve, or give --url"),
        (["fox", "--url", "http://a/v1"], "one of them"),
        (["--url", "http://127.0.0.1:9/v1"], "no connection"),
        (["--url", "http://127.0.0.1:9/v1", "--serve", "--rows 4"], "--serve: has options for a server of MODEL"),
        (["--url", "http://127.0.0.1:9/v1", "--prompt-lengths", "many"], "--prompt-lengths many"),
        (["--url", "http://127.0.0.1:9/v1", "--trace", "none.jsonl"], "--trace none.jsonl: cannot be read"),
        (["no-such-model"], "burnish serve no-such-model"),
    ],
)
def test_what_is_wrong_is_told_in_one_line(words: list[str], said: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert code_of(["bench", "serve", *words]) == 2
    out, err = capfd.readouterr()
    assert said in err
    assert (out, len(err.splitlines())) == ("", 1)
