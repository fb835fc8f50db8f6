"""Cells: one line of a published table, read by column with a reason where a cell cannot be read."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from burnish.errors import UserError

UNKNOWN = frozenset({"", "-", "?", "n/a", "na", "none", "null", "unknown", "not stated"})
MOST = 10**8  # of anything that is counted
LEAST_NUMBER, MOST_NUMBER = 1e-12, 1e18  # of anything that is measured: what is beyond overflows sooner or later
# What a terminal would obey instead of showing: escape sequences (ECMA-48, sections 5.4 and 5.6), control characters.
ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[\]PX^_].*?(?:\x07|\x1b\\|$)|\x1b[ -/]*[0-~]", re.DOTALL)


class NotExpressed(Exception):
    """Why a line cannot be put as a job on a cluster; the text is what is printed beside the line."""


@dataclass
class Cells:
    """The cells of a line and `assumed`, what was put in the place of blank ones."""

    values: Mapping[str, str]
    assumed: list[str] = field(default_factory=list)

    def text(self, column: str) -> str:
        """A cell on one line without space around it and control characters; empty where there is no such column."""
        return plain(self.values.get(column) or "")

    def blank(self, column: str) -> bool:
        """Whether a cell says nothing."""
        return self.text(column).lower() in UNKNOWN

    def number(self, column: str) -> float | None:
        """A cell's number, None when blank. Raises NotExpressed for text, zero, negative and infinite numbers."""
        if self.blank(column):
            return None
        text = self.text(column).replace(",", "")
        try:
            value = float(text)
        except ValueError:
            raise NotExpressed(f"{column}: {self.text(column)[:40]!r} is not a number") from None
        if not math.isfinite(value) or value <= 0:
            raise NotExpressed(f"{column}: {text[:40]} is not a positive number")
        if not LEAST_NUMBER <= value <= MOST_NUMBER:
            raise NotExpressed(f"{column}: {text[:40]} is beyond what can be measured")
        return value

    def whole(self, column: str) -> int | None:
        """A cell's whole number, None when blank. Raises NotExpressed where it has a fraction or is no number."""
        value = self.number(column)
        if value is None:
            return None
        if value != int(value):
            raise NotExpressed(f"{column}: {self.text(column)[:40]} is not a whole number")
        if value > MOST:
            raise NotExpressed(f"{column}: {value:.3g} is more than any machine or model has")
        return int(value)

    def found(self, column: str, pattern: str) -> re.Match[str] | None:
        """Where a pattern first occurs in a cell, in any case of letters."""
        return re.search(pattern, self.text(column), re.IGNORECASE)

    def assume(self, what: str) -> None:
        """Note a value that the line does not state."""
        self.assumed.append(what)


def plain(text: str) -> str:
    """Text as one line that a terminal shows and does not obey."""
    if text.isprintable():
        return text.strip()
    shown = "".join(letter if letter.isprintable() else " " for letter in ESCAPES.sub("", text))
    return " ".join(shown.split())


def read_table(path: Path | str) -> tuple[tuple[str, ...], list[dict[str, str]]]:
    """The columns and the lines of a CSV file. Raises UserError where there is none to read."""
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            columns: Sequence[str] = reader.fieldnames or ()
            if twice := sorted({name for name in columns if name and columns.count(name) > 1}):
                named = ", ".join(repr(plain(name)[:40]) for name in twice)
                raise UserError(f"{path}: column {named} stands more than once; keep one of each name")
            lines = [{key: value or "" for key, value in line.items() if isinstance(key, str)} for line in reader]
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not a CSV file in UTF-8 ({error})") from None
    except csv.Error as error:
        if "field larger" not in str(error):
            raise UserError(f"{path}: not a CSV file ({error})") from None
        at, most = reader.line_num + 1, csv.field_size_limit()
        raise UserError(
            f"{path}: line {at}: a cell of more than {most:,} characters; shorten it or leave it out"
        ) from None
    if not columns:
        raise UserError(f"{path}: empty; a table of rows with a first line of column names is needed")
    if not lines:
        raise UserError(f"{path}: has column names but no rows")
    return tuple(columns), lines
