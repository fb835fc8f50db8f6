"""Cells of published rows: numbers, words and files as people really write them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from burnish.errors import UserError
from burnish.rows.cells import Cells, NotExpressed, read_table


@pytest.mark.parametrize(("text", "value"), [("8", 8.0), (" 1,024 ", 1024.0), ("1e3", 1000.0), ("0.5", 0.5)])
def test_a_number_is_read(text: str, value: float) -> None:
    assert Cells({"x": text}).number("x") == value


@pytest.mark.parametrize("text", ["", "-", "n/a", "unknown", "None"])
def test_a_cell_that_says_nothing_is_blank(text: str) -> None:
    assert Cells({"x": text}).number("x") is None


@pytest.mark.parametrize("text", ["eight", "0", "-4", "inf", "1e999", "8x", "1 2"])
def test_what_is_no_positive_number_names_its_column(text: str) -> None:
    with pytest.raises(NotExpressed, match=r"^x: "):
        Cells({"x": text}).number("x")


def test_half_a_chip_is_refused() -> None:
    with pytest.raises(NotExpressed, match=r"n_gpus: 1\.5 is not a whole number"):
        Cells({"n_gpus": "1.5"}).whole("n_gpus")


def number_or_reason(text: str) -> float | str | None:
    try:
        return Cells({"x": text}).number("x")
    except NotExpressed as reason:
        return str(reason)


@given(st.text(max_size=20))
def test_any_text_is_a_positive_number_or_blank_or_a_reason(text: str) -> None:
    found = number_or_reason(text)
    if isinstance(found, str):
        assert found.startswith("x: ")
    else:
        assert found is None or 0 < found < float("inf")


def test_a_column_that_is_not_there_is_blank() -> None:
    assert Cells({}).blank("seq_len")


@pytest.mark.parametrize(("content", "said"), [(b"", "empty"), (b"id,model\n", "no rows"), (b"\xff\xfe\x00", "UTF-8")])
def test_a_file_without_rows_is_refused_in_one_line(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(content)
    with pytest.raises(UserError, match=said) as caught:
        read_table(path)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read"):
        read_table(tmp_path / "none.csv")


def test_short_and_long_lines_do_not_break_a_table(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("\ufeffid,model\na\nb,c,d,e\n", encoding="utf-8")
    columns, lines = read_table(path)
    assert columns == ("id", "model")
    assert lines == [{"id": "a", "model": ""}, {"id": "b", "model": "c"}]
