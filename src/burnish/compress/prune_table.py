"""Table: which layers, key-value groups and channels of a decoder stay, a line a layer, and why: what share of what they do
is left. It names the model, the samples and the settings it was made with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from burnish.compress.table_key import SHORT, Key
from burnish.errors import UserError
from burnish.records import Frozen, read, write_text


class Kept(Frozen):
    """One layer. `importance` is that of the whole layer, of 1 over all of them; the shares are of its own parts' sums.

    A layer that goes keeps nothing.
    """

    layer: int
    stays: bool
    importance: float
    groups_share: float = 0.0
    channels_share: float = 0.0
    groups: tuple[int, ...] = ()
    channels: tuple[int, ...] = ()


class Table(Frozen):
    """Every layer of the decoder as it was, in its order."""

    key: Key
    layers: tuple[Kept, ...]

    @property
    def kept(self) -> tuple[Kept, ...]:
        """The layers that stay."""
        return tuple(row for row in self.layers if row.stays)

    @property
    def numbers(self) -> tuple[int, ...]:
        """Their numbers."""
        return tuple(row.layer for row in self.kept)

    def check(self, model: str, config: dict[str, Any]) -> None:
        """Raises UserError where weights or settings are others than those it was made with."""
        if self.key.model != model:
            raise UserError(
                f"the table of what stays is for a model {self.key.model[:SHORT]}, not for {model[:SHORT]}; search again"
            )
        self.check_config(config)

    def check_config(self, config: dict[str, Any]) -> None:
        """Raises UserError where settings are others than those it was made with."""
        for name in sorted(config.keys() | self.key.config.keys()):
            if config.get(name) != (made := self.key.config.get(name)):
                raise UserError(
                    f"the table of what stays was made with {name} {made}, not {config.get(name)}; search again"
                )


def notes(table: Table) -> list[str]:
    """What a person should know of it: which layers go, and which keep least of what their parts do."""
    kind, said = table.key.config.get("importance"), []
    if gone := [row for row in table.layers if not row.stays]:
        share = sum(row.importance for row in gone)
        numbers = ", ".join(str(row.layer) for row in gone)
        said.append(
            f"prune: out of {len(table.layers)} layers go {numbers}, with {share:.1%} of the importance by {kind}"
        )
    for part in ("channels", "groups"):
        shares = {row.layer: float(getattr(row, f"{part}_share")) for row in table.kept if getattr(row, part)}
        if shares and min(shares.values()) < 1:
            least, most = min(shares, key=shares.__getitem__), max(shares, key=shares.__getitem__)
            said.append(
                f"prune: the {part} that stay have {shares[least]:.1%} (layer {least}) to {shares[most]:.1%} (layer {most}) of "
                f"their layer's importance by {kind}"
            )
    return said


def save_table(table: Table, path: Path) -> None:
    """Write it: a line for the key and one for each layer."""
    rows = ",\n".join(_line(row) for row in table.layers)
    write_text(path, f'{{"key": {_line(table.key)},\n"layers": [\n{rows}]}}\n')


def load_table(path: Path) -> Table:
    """Read what `save_table` wrote. Raises UserError where it is missing or damaged."""
    return read(Table, path)


def _line(row: Frozen) -> str:
    return json.dumps(row.model_dump(mode="json"), ensure_ascii=False)
