"""Table of 8-bit scales: what calibration found, in text of one line a tensor, and for which model, samples and settings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from burnish.compress.table_key import SHORT, Key
from burnish.errors import UserError
from burnish.records import Frozen, read, write_text


class FoldRow(Frozen):
    """One fold of a layer: `scale` divides the channels of `source`; `strength` None: they stay. Errors are expected ones."""

    layer: int
    source: str
    strength: float | None
    plain: float
    smooth: float
    scale: tuple[float, ...]


class InputRow(Frozen):
    """A tensor that matrices read: 127 stands for `threshold`; `clipped` is the share of values beyond it."""

    name: str
    matrices: tuple[str, ...]
    calibrator: str
    low: float
    high: float
    threshold: float
    clipped: float

    @property
    def scale(self) -> float:
        """The step of its integers."""
        return self.threshold / 127


class TriedRow(Frozen):
    """A calibrator tried for a kind of tensor: the relative squared error of the model's last states, kinds before as chosen."""

    kind: str
    calibrator: str
    error: float


class Table(Frozen):
    """Every tensor's; `tokens` is how many real ones were seen."""

    key: Key
    tokens: int
    folds: tuple[FoldRow, ...] = ()
    tried: tuple[TriedRow, ...] = ()
    inputs: tuple[InputRow, ...] = ()

    def check(self, model: str, config: dict[str, Any]) -> None:
        """Raises UserError where weights or settings are others than those it was made with."""
        if self.key.model != model:
            raise UserError(
                f"the table of scales is for a model {self.key.model[:SHORT]}, not for {model[:SHORT]}; calibrate this model"
            )
        if odd := [name for name, value in self.key.config.items() if config.get(name) != value]:
            raise UserError(
                f"the table of scales was made with {odd[0]} {self.key.config[odd[0]]}, not {config.get(odd[0])}; calibrate again"
            )


def text_of(table: Table) -> str:
    """The JSON of a table, a line for each tensor."""
    folds, tried, inputs = (
        ",\n".join(json.dumps(row.model_dump(mode="json")) for row in rows)
        for rows in (table.folds, table.tried, table.inputs)
    )
    key = json.dumps(table.key.model_dump(mode="json"))
    lists = f'"folds": [\n{folds}],\n"tried": [\n{tried}],\n"inputs": [\n{inputs}]'
    return f'{{"key": {key},\n"tokens": {table.tokens},\n{lists}}}\n'


def save_table(table: Table, path: Path) -> None:
    """Write it."""
    write_text(path, text_of(table))


def load_table(path: Path) -> Table:
    """Read what `save_table` wrote. Raises UserError where it is missing or damaged."""
    return read(Table, path)
