"""`burnish plan --serve` from the command line: the table, the record, remedies with exit code 3, and bad input in one line."""

from __future__ import annotations

import json

import pytest

from burnish.cli import code_of

ASKED = ["plan", "llama-3.1-8b", "--serve", "--chip", "h100-sxm"]


def test_a_record_says_what_fits(capsys: pytest.CaptureFixture[str]) -> None:
    assert code_of([*ASKED, "--gpus", "2", "--batch", "4", "--weights", "bf16,int4", "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["fits"]
    assert [(way["weights"], way["tp"]) for way in made["ways"]] == [("bf16", 1), ("bf16", 2), ("int4", 1), ("int4", 2)]
    assert made["smallest"]["tp"] == 1
    rates = [point["throughput"] for point in made["curve"]]
    assert rates == sorted(rates)
    assert made["curve"][-1]["batch"] == made["fastest"]["largest"]


def test_this_machine_and_a_recipe_are_planned(capsys: pytest.CaptureFixture[str]) -> None:
    assert code_of(["plan", "quickstart", "--serve", "--chip", "here", "--prompt", "16", "--new", "8"]) in (0, 3)
    assert "quickstart served on here" in capsys.readouterr().out


def test_what_does_not_fit_ends_with_remedies(capsys: pytest.CaptureFixture[str]) -> None:
    assert code_of(["plan", "llama-3.1-70b", "--serve", "--chip", "h100-sxm"]) == 3
    said = capsys.readouterr()
    assert "does not fit on h100-sxm:1x1; would fit: --weights fp8, --weights int8" in said.err
    assert "GiB a chip too much" in said.out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["plan", "", "--serve", "--chip", "h100-sxm"], "name the model"),
        (["plan", "llama-3.1-8b", "--serve"], "--chip"),
        ([*ASKED, "--cluster", "h100-sxm:1x1"], "one of both"),
        ([*ASKED, "--gpus", "0"], "--gpus 0"),
        ([*ASKED, "--batch", "0"], "--batch 0"),
        ([*ASKED, "--prompt", "-3"], "--prompt -3"),
        ([*ASKED, "--weights", "bf61"], "bf16"),
        ([*ASKED, "--kv", "int4"], "--kv"),
        ([*ASKED, "--memory", "much"], "512MiB"),
        ([*ASKED, "--memory", "900GiB"], "79.6 GiB"),
        ([*ASKED, "--seq", "4096"], "--seq plan training"),
        ([*ASKED, "--engine", "steam"], "fused-2023"),
        ([*ASKED, "--prompt", "200000"], "131072"),
        (["plan", "llama-3.1-8c", "--serve", "--chip", "h100-sxm"], "llama-3.1-8b"),
        (["plan", "quickstart", "--prompt", "8"], "add --serve"),
    ],
)
def test_bad_input_is_one_line(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert code_of(words) == 2
    error = capsys.readouterr().err.strip()
    assert said in error
    assert "\n" not in error
