"""Rows of a file that others made: JSON objects, one a line, or lines of a CSV file with names of columns in the first."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from burnish.data.text import check_unicode, decode, json_lines, json_name
from burnish.errors import UserError, nearest

JSONL, CSV = ".jsonl", ".csv"


def table_rows(path: str | Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Each row: file and line for messages, and its columns. Cells of a CSV file are texts.

    Raises UserError naming file and line for what is no such row, and for a file that holds none.
    """
    file = Path(path).expanduser()
    if file.suffix.lower() not in (JSONL, CSV):
        raise UserError(f"{file}: is no {JSONL} or {CSV} file; rows of columns are read from these")
    found = False
    for where, row in _objects(file) if file.suffix.lower() == JSONL else _cells(file):
        found = True
        yield where, row
    if not found:
        raise UserError(f"{file}: holds no row")


def text_of_row(row: Mapping[str, Any], column: str, where: str) -> str:
    """The text in a column. Raises UserError where there is none."""
    if column not in row:
        raise UserError(f"{where}: no column {column!r}; {nearest(column, row)}")
    value = row[column]
    if not isinstance(value, str):
        raise UserError(f"{where}: {column!r} must be a string, found {json_name(value)}")
    check_unicode(value, where)
    return value


def number_of_row(row: Mapping[str, Any], column: str, where: str) -> float:
    """The finite number in a column, a text that spells one included. Raises UserError where there is none."""
    value = row.get(column)
    try:
        number = float(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else float("nan")
    except (ValueError, OverflowError):
        number = float("nan")
    if not float("-inf") < number < float("inf"):
        raise UserError(f"{where}: {column!r} must be a number, found {str(value)[:40]!r}")
    return number


def _objects(file: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for where, record in json_lines(file):
        if not isinstance(record, dict):
            raise UserError(f"{where}: expected a JSON object, found {json_name(record)}")
        yield where, record


def _cells(file: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    try:
        raw = file.read_bytes()
    except OSError as error:
        raise UserError(f"{file}: cannot be read ({error.strerror or error})") from None
    reader = csv.reader(io.StringIO(decode(raw, str(file)), newline=""), strict=True)
    names: list[str] = []
    try:
        for cells in reader:
            where = f"{file}, line {reader.line_num}"
            if not cells:
                continue
            if not names:
                names = _names(cells, where)
                continue
            if len(cells) != len(names):
                raise UserError(f"{where}: {len(cells)} cells, the first line names {len(names)} columns")
            yield where, dict(zip(names, cells, strict=True))
    except csv.Error as error:
        raise UserError(f"{file}, line {reader.line_num}: not CSV ({error})") from None


def _names(cells: list[str], where: str) -> list[str]:
    names = [cell.strip() for cell in cells]
    if twice := next((name for k, name in enumerate(names) if name in names[:k]), None):
        raise UserError(f"{where}: the column {twice!r} stands twice; keep one of the two")
    return names
