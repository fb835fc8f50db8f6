"""Row rules: the table of how words in published rows are read and what stands in for blank cells."""

from __future__ import annotations

import math
import re
import tomllib
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from burnish.rows.cells import Cells, NotExpressed
from burnish.stack import Stack, nearest_stack


@cache
def table(name: str = "row_defaults") -> dict[str, Any]:
    """One of the tables about published rows, as it stands."""
    path = Path(__file__).parents[1] / "tables" / f"{name}.toml"
    return tomllib.loads(path.read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Facts:
    """What the choice of a default may depend on."""

    stack: Stack
    workload: str = "pretrain"
    notes: str = ""
    pp: int = 1
    gpus: int = 1
    parameters: float = math.inf


def entry(kind: str, text: str) -> dict[str, Any] | None:
    """The first entry of a list whose pattern is found in the text; None where none is."""
    for row in table()[kind]:
        if re.search(row["match"], text, re.IGNORECASE):
            found: dict[str, Any] = row
            return found
    return None


def worded(cells: Cells, column: str, facts: Facts) -> str:
    """What a cell of words means (a precision, an attention kernel, a recompute), or the default where it is blank.

    Unknown words count as blank and are noted, but an unknown precision decides too much: it raises NotExpressed.
    """
    text = cells.text(column)
    if cells.blank(column) and text.lower() != "none":
        return str(default(cells, column, facts))
    row = entry(column, text)
    if row is not None and "refuse" not in row:
        return str(row["value"])
    if row is not None or column == "precision":
        raise NotExpressed(f"{column}: {row['refuse'] if row else repr(text[:40]) + ' is not known'}")
    cells.assume(f"{column}: {text[:40]!r} is not known")
    return str(default(cells, column, facts))


def default(cells: Cells, name: str, facts: Facts) -> Any:
    """What stands in for a blank cell; noted among what was assumed."""
    row = rule(name, facts)
    cells.assume(f"{name} {row['value']}: {row['why']}")
    return row["value"]


def rule(name: str, facts: Facts) -> dict[str, Any]:
    """The first rule for a field whose conditions hold."""
    return next(row for row in table()["blank"] if row["field"] == name and _holds(row, facts))


def _holds(row: dict[str, Any], facts: Facts) -> bool:
    stack = facts.stack
    return (
        row.get("from", 0) <= stack.year <= row.get("to", 9999)
        and stack.kind in row.get("kind", (stack.kind,))
        and row.get("pp", facts.pp) == facts.pp
        and row.get("gpus", facts.gpus) == facts.gpus
        and row.get("gpus_above", 0) < facts.gpus
        and row.get("parameters_above", 0) < facts.parameters
        and re.search(row.get("tool", ""), f"{stack.tool} {stack.name}", re.IGNORECASE) is not None
        and re.search(row.get("workload", ""), facts.workload, re.IGNORECASE) is not None
        and re.search(row.get("notes", ""), facts.notes, re.IGNORECASE) is not None
    )


def stack_of(cells: Cells, name: str) -> tuple[str, Stack]:
    """Whose software ran: the name, and its profile as changed by what the line says of it."""
    if (other := entry("stack", cells.text("notes"))) is not None and other["value"] != name:
        cells.assume(f"stack {other['value']}: the notes name it")
        name = other["value"]
    stack, said = nearest_stack(name or "unnamed")
    if said:
        cells.assume(said)
    for row in table()["variant"]:
        stated = {row["column"]: row["match"], **row.get("where", {})}
        found = all(cells.found(column, pattern) for column, pattern in stated.items())
        if found and any(getattr(stack, k) != v for k, v in row["set"].items()):
            stack = replace(stack, **row["set"])
            cells.assume(f"stack {row['set']}: {row['why']}")
    return name, stack
