"""Put integers of 4 bits in the place of a decoder's matrices, as a table says, or rounded to nearest without one."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from burnish.compress import clip
from burnish.compress.awq_layer import apply_rows
from burnish.compress.awq_search import chosen_matrices
from burnish.compress.awq_table import Table
from burnish.compress.fold import experts_of, folds_of
from burnish.compress.rtn import integers
from burnish.models.decoder import Decoder
from burnish.ops.int4_linear import Int4Grouped, Int4Linear
from burnish.weight_format import IntWeights


@torch.no_grad()
def compress_model(model: Decoder, scheme: IntWeights, keep: tuple[str, ...], table: Table | None) -> None:
    """Replace every matrix but those of `keep`, a layer at a time, in place.

    Raises UserError where a scale does not fit the format of the file.
    """
    chosen = chosen_matrices(model, keep)
    for number, block in enumerate(model.layers):
        clips: dict[str, str] = {}
        if table is not None:
            layer = table.layers[number]
            apply_rows(block, folds_of(model.shape), list(layer.folds))  # type: ignore[arg-type]
            clips = {row.name: row.clip for row in layer.matrices}
        for name in chosen[number]:
            replace_matrix(block, name, scheme, clips.get(f"layers.{number}.{name}", ""), f"layers.{number}.{name}")


def replace_matrix(block: nn.Module, name: str, scheme: IntWeights, clipped: str, where: str) -> None:
    """Put integers in the place of one matrix of a layer; of experts, of all their matrices."""
    module: Any = block.get_submodule(name)
    ratios = clip.ratios(clip.read(clipped)) if clipped else 1.0
    own = integers(module.weight, scheme, ratios, where)
    kind = Int4Grouped if experts_of(block, name) > 1 else Int4Linear
    block.set_submodule(name, kind(scheme, module.weight.shape[1], own, getattr(module, "bias", None)))
