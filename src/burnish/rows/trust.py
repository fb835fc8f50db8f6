"""Row trust: which published rows are second-hand or suspicious, and why; both are printed apart from the score."""

from __future__ import annotations

from burnish.rows.cells import Cells
from burnish.rows.rules import table


def reason(kind: str, cells: Cells) -> str:
    """Why a line is "second_hand" or "distrusted"; empty where it is neither."""
    for row in table("row_trust")[kind]:
        if all(cells.found(column, pattern) for column, pattern in row.items() if column != "why"):
            return str(row["why"])
    return ""
