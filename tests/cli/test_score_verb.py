"""`burnish score` from the command line: a table, JSON, and one line for a file that is no table of rows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from burnish.cli import code_of

HEADER = "id,source,gpu,n_gpus,model,layers,hidden,seq_len,global_batch,micro_batch,tp,pp,cp,dp,iter_time_s,stack\n"
ROW = "r1,page,H100 SXM,8,Some-7B,32,4096,4096,64,1,1,1,1,8,6.0,fsdp2-torchao\n"


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "rows.csv"
    path.write_text(HEADER + ROW + ROW.replace("r1", "r2").replace("H100 SXM", "abacus"), encoding="utf-8")
    return path


def test_a_table_names_sources_and_what_is_not_expressed(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert code_of(["score", str(table), "--rows", "--stack-info"]) == 0
    printed = capsys.readouterr().out
    assert "not expressed: 1" in printed
    assert "abacus" in printed
    assert "fsdp2-torchao -> fsdp2-torchao" in printed


def test_json_is_the_record(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert code_of(["score", str(table), "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert (record["overall"]["rows"], record["sources"]["page"]["expressed"]) == (2, 1)


@pytest.mark.parametrize("content", [None, "", "x,y\n1,2\n"])
def test_another_file_ends_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str | None) -> None:
    path = tmp_path / "rows.csv"
    if content is not None:
        path.write_text(content, encoding="utf-8")
    assert code_of(["score", str(path)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert "rows.csv" in captured.err
