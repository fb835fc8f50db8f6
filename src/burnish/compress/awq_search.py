"""The search over a whole decoder, a layer at a time, that a kill does not lose: every finished layer is a file.

Every layer reads what the unrounded layers before it give. What passes between layers is not written: going on after a kill
runs the finished layers again, which gives the same states, and takes what was found for them from their files.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from burnish.compress.awq_layer import search_layer
from burnish.compress.awq_scales import Settings
from burnish.compress.awq_stream import ROWS, enter, through
from burnish.compress.awq_table import Layer, Table
from burnish.compress.fingerprint import model_fingerprint
from burnish.compress.fold import matrices_of
from burnish.compress.samples import Samples
from burnish.compress.table_key import SHORT, Key
from burnish.errors import UserError
from burnish.models.decoder import Decoder
from burnish.records import read, save
from burnish.weight_format import fits

KEY = "search.json"
Told = Callable[[int, int], None]  # layers done, layers in all


def chosen_matrices(model: Decoder, keep: tuple[str, ...]) -> list[tuple[str, ...]]:
    """The matrices of each layer to compress: all but those whose name a pattern of `keep` fits."""
    names = matrices_of(model.shape)  # type: ignore[arg-type]
    return [
        tuple(name for name in names if not fits(f"layers.{number}.{name}", keep))
        for number in range(len(model.layers))
    ]


@torch.no_grad()
def search_model(
    model: Decoder,
    samples: Samples,
    settings: Settings,
    config: dict[str, Any],
    state: Path | None = None,
    told: Told | None = None,
) -> Table:
    """The table of a decoder, which stays as it is. `state`: a folder for finished layers, from which a later call goes on.

    `config` is what the table says it was made with; its `keep` names matrices that stay. Raises UserError for what is not
    finite, and for a folder with the state of another search.
    """
    key = Key(model=model_fingerprint(model), samples=samples.fingerprint, config=config)
    if state is not None:
        _claim(state, key)
    chosen = chosen_matrices(model, tuple(config.get("keep", ())))
    batches = enter(model, samples, ROWS)
    layers: list[Layer] = []
    for number, block in enumerate(model.layers):
        file = state / f"layer-{number:04d}.json" if state is not None else None
        if file is not None and file.exists():
            layers.append(read(Layer, file))
            batches[:] = [batch._replace(states=through(model, number, block, batch)) for batch in batches]
        else:
            layers.append(search_layer(model, number, batches, chosen[number], settings))
            if file is not None:
                save(layers[-1], file)
        if told is not None:
            told(number + 1, len(model.layers))
    return Table(key=key, layers=tuple(layers))


def _claim(state: Path, key: Key) -> None:
    """Mark a folder as this search's, or see that it is."""
    file = state / KEY
    if not file.exists():
        save(key, file)
        return
    found = read(Key, file)
    if found != key:
        what = next(name for name in ("model", "samples", "config") if getattr(found, name) != getattr(key, name))
        said = f"{getattr(found, what)}"[:SHORT] if what != "config" else "other settings"
        raise UserError(f"{state}: holds a search for another {what} ({said}); name another folder, or delete it")
