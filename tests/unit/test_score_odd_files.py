"""Scores of files with odd cells: a reason beside the row, JSON that is JSON, a table that stays a table."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from published_row import published, write

from burnish import score
from burnish.errors import UserError
from burnish.rows.cells import Cells, plain
from burnish.rows.lint import lint
from burnish.rows.training import row_of
from burnish.score.blocks import kendall_tau
from burnish.score.text import middle, named


def refused(constant: str) -> Any:
    raise AssertionError(f"{constant} is no JSON")


def test_repeated_ids_are_told_apart_and_named(tmp_path: Path) -> None:
    rows = [published(id="a"), published(id="a", global_batch=63), published(id="b")]
    made = score.score(write(tmp_path / "rows.csv", *rows))
    assert list(made["distrusted"]["ids"]) == ["a (line 3)"], "the sound row of that id is not kept apart"
    assert made["overall"]["rows"] == 2
    assert ("a (line 3)", "the id a stands in an earlier line too") in [(f["id"], f["reason"]) for f in made["lint"]]


def test_repeated_columns_are_named(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("id,model,gpu,n_gpus,gpu\n1,x,H100,1,A100\n", encoding="utf-8")
    with pytest.raises(UserError, match="column 'gpu' stands more than once"):
        score.score(path)


def test_a_long_cell_is_said_to_be_long(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(f"id,model,gpu,n_gpus\n1,x,H100,1\n2,{'x' * 200_000},H100,1\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"line 3: a cell of more than 131,072 characters") as raised:
        score.score(path)
    assert "UTF-8" not in str(raised.value)


@pytest.mark.parametrize("value", ["nan", "NaN", "0", "-3", "1e400", "-inf", "1e308", "1e-300"])
@pytest.mark.parametrize("column", ["iter_time_s", "peak_mem_gb"])
def test_a_number_that_cannot_be_is_a_reason_and_never_in_the_json(tmp_path: Path, value: str, column: str) -> None:
    path = write(tmp_path / "rows.csv", published(id="a"), published(id="b", **{column: value}))
    record = json.loads("".join(score.shown(path, as_json=True, each=True)), parse_constant=refused)
    assert [(row["id"], row["reason"].split(":")[0]) for row in record["not_expressed"]] == [("b", column)]


def test_what_is_not_finite_is_null_in_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(score, "record", lambda lines, findings: {"a": float("inf"), "b": [float("nan"), 1.5]})
    made = "".join(score.shown(write(tmp_path / "rows.csv", published()), as_json=True))
    assert json.loads(made, parse_constant=refused) == {"a": None, "b": [None, 1.5]}


TEST_RUNS = [
    ("{}", "x", "6", "mem_allocated_bytes: 'x' is not a number"),
    ("{}", "5", "text", "mem_max_allocated_bytes: 'text' is not a number"),
    ("{}", "5", "6", "args_json: no num-layers"),
    ('{"num-layers": "x"}', "5", "6", "args_json: "),
    ('{"num-layers": 4, "hidden-size": 0}', "5", "6", "args_json: "),
    ('{"num-layers": 4, "num-attention-heads": 4, "hidden-size": [1]}', "5", "6", "args_json: "),
]


@pytest.mark.parametrize(("arguments", "before", "top", "reason"), TEST_RUNS)
def test_a_test_run_that_cannot_be_read_has_its_reason(
    tmp_path: Path, arguments: str, before: str, top: str, reason: str
) -> None:
    row = {"id": "1", "family": "gpt", "args_json": arguments, "mem_allocated_bytes": before}
    row |= {"mem_max_allocated_bytes": top, "gpu": "A100", "gpu_mem_gb": "80", "vocab": "500"}
    (found,) = score.score(write(tmp_path / "runs.csv", row))["not_expressed"]
    assert found["reason"].startswith(reason)


def test_test_runs_without_arguments_have_a_reason(tmp_path: Path) -> None:
    path = write(tmp_path / "runs.csv", {"id": "1", "mem_allocated_bytes": "x"})
    assert [row["id"] for row in score.score(path)["not_expressed"]] == ["1"]


def test_control_characters_neither_break_the_table_nor_reach_the_terminal(tmp_path: Path) -> None:
    odd = published(
        id="\x1b[31mred\x1b[0m\x07", source="first\nsecond \x1b]0;title\x07", model="a\tb", gpu="TPU\x1b[2J"
    )
    shown = "\n".join(score.shown(write(tmp_path / "rows.csv", odd), each=True, assumed=True))
    assert all(letter.isprintable() or letter == "\n" for letter in shown)
    assert "first second " in shown
    assert "\nred " in shown


@given(st.text())
def test_any_cell_is_one_printable_line(text: str) -> None:
    assert plain(text).isprintable()
    assert plain(plain(text)) == plain(text)


def test_large_numbers_do_not_run_together(tmp_path: Path) -> None:
    rows = [published(id="slow", iter_time_s=1e15), published(id="full", peak_mem_gb=1e9, iter_time_s=4e-9)]
    for line in score.shown(write(tmp_path / "rows.csv", *rows), each=True):
        assert len(line) <= 100
        if line.startswith(("a page", "all", "apart")):
            assert len(line[36:].split()) == 10, line


def test_names_that_differ_read_differently() -> None:
    stem = "NVIDIA/NeMo docs/source/performance/"
    names = [f"{stem}{k}" for k in ("performance_summary.md", "performance_long_sequence.md")]
    names += ["x" * 40 + "middle a" + "y" * 40, "x" * 40 + "middle b" + "y" * 40, "short"]
    names += [
        "pytorch/ao torchao/prototype/moe_training/README.md",
        "pytorch/ao torchao/prototype/q_training/README.md",
    ]
    made = named(names, 35)
    assert len(set(made)) == len(names)
    assert all(len(name) <= 35 for name in made)
    assert made[0].endswith("summary.md")
    assert made[4] == "short"
    assert middle("abcdefghij", 7) == "ab...ij"


def test_reasons_are_whole(tmp_path: Path) -> None:
    row = published(id="x", model="An unheard of mixture of 128 experts with a long name that goes on, MoE", layers="")
    shown = " ".join(" ".join(score.shown(write(tmp_path / "rows.csv", row))).split())
    assert "is no preset and its sizes are not stated" in shown


def test_a_table_of_one_setting_is_not_compared_pair_by_pair() -> None:
    row = row_of(published(mfu=40))
    rows = [row] * 12_000
    began = time.process_time()
    findings = lint([*rows, row_of(published(id="odd", iter_time_s=9))])
    ranks = np.arange(30_000.0)
    assert kendall_tau(ranks, -ranks) == -1
    assert time.process_time() - began < 20
    assert max(len(finding.reason) for finding in findings) < 200


def test_an_unheard_of_model_is_not_compared_with_all_presets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("burnish.presets.difflib", None)
    assert row_of(published(model="Some-7B")).setting is not None


def test_not_a_number_counts_as_no_blank() -> None:
    assert not Cells({"a": "nan"}).blank("a")
    assert Cells({"a": "n/a"}).blank("a")
