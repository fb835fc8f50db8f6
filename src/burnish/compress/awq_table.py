"""Table: what a search over scales and clips found, in text of one line a tensor, and for which model, samples and settings.

`loss` is the mean squared error over tokens, summed over outputs, that the integers give; `rounded` the same without scales
and clips; `energy` that of giving nothing, so that loss / energy is noise to signal.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from burnish.compress.table_key import SHORT, Key
from burnish.errors import UserError
from burnish.records import Frozen, read, write_text


class FoldRow(Frozen):
    """One fold of a layer: `scale` divides the channels of `source`; of experts each has a row, the norm before them one."""

    layer: int
    source: str
    expert: int = 0
    family: str  # "identity", "activation" or "duo"
    ratio: float
    rounded: float
    loss: float
    scale: tuple[float, ...]


class MatrixRow(Frozen):
    """One matrix: `clip` has a digit for each output and group, none where nothing is clipped; `unseen`: idle experts."""

    name: str
    energy: float
    rounded: float
    loss: float
    clip: str = ""
    unseen: tuple[int, ...] = ()


class Layer(Frozen):
    """What was found for one layer."""

    folds: tuple[FoldRow, ...]
    matrices: tuple[MatrixRow, ...]


class Table(Frozen):
    """Every layer's."""

    key: Key
    layers: tuple[Layer, ...]

    def check(self, model: str, config: dict[str, Any]) -> None:
        """Raises UserError where weights or settings are others than those it was made with."""
        if self.key.model != model:
            raise UserError(
                f"the table is for a model {self.key.model[:SHORT]}, not for {model[:SHORT]}; search again with this model"
            )
        for name, value in self.key.config.items():
            if config.get(name) != value:
                raise UserError(f"the table was made with {name} {value}, not {config.get(name)}; search again")

    @property
    def unseen(self) -> tuple[str, ...]:
        """Experts that no token reached; they are rounded to nearest."""
        return tuple(f"{row.name} of expert {e}" for layer in self.layers for row in layer.matrices for e in row.unseen)


def save_table(table: Table, path: Path) -> None:
    """Write it, a line for the key and one for each row."""
    write_text(path, text_of(table))


def load_table(path: Path) -> Table:
    """Read what `save_table` wrote. Raises UserError where it is missing or damaged."""
    return read(Table, path)


def text_of(table: Table) -> str:
    """The JSON of a table."""
    layers = ",\n".join(_layer(layer) for layer in table.layers)
    return f'{{"key": {_line(table.key)},\n"layers": [\n{layers}]}}\n'


def _layer(layer: Layer) -> str:
    folds, matrices = (",\n".join(map(_line, rows)) for rows in (layer.folds, layer.matrices))
    return f'{{"folds": [\n{folds}],\n"matrices": [\n{matrices}]}}'


def _line(row: Frozen) -> str:
    return json.dumps(row.model_dump(mode="json"), ensure_ascii=False)
