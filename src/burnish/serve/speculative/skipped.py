"""A model with some of its layers left out, as its own draft: it shares all weights.

Zhang et al. 2024, "Draft & verify", arXiv 2309.08168. Layers in the middle change a text's hidden states least, so those
go, evenly spread; the first and the last stay.
"""

from __future__ import annotations

from torch import nn

from burnish.config import ModelConfig
from burnish.errors import UserError
from burnish.models.decoder import Decoder


def kept_layers(layers: int, left_out: int) -> list[int]:
    """The layers that stay. Raises UserError where fewer than two would."""
    most = layers - 2
    if not 1 <= left_out <= most:
        can = f"1 to {most}" if most > 0 else "none: it has too few"
        raise UserError(f"--draft skip:{left_out}: the model has {layers} layers; layers that can be left out: {can}")
    gone = {1 + (2 * number + 1) * most // (2 * left_out) for number in range(left_out)}
    return [layer for layer in range(layers) if layer not in gone]


def skipped(model: Decoder, config: ModelConfig, left_out: int) -> tuple[Decoder, ModelConfig]:
    """A decoder of the layers that stay, which are the model's own modules. Raises UserError as `kept_layers`."""
    kept = kept_layers(config.layers, left_out)
    first = sum(layer < config.window_from for layer in kept)
    smaller = config.model_copy(update={"layers": len(kept), "window_from": first})
    made = Decoder.__new__(Decoder)
    nn.Module.__init__(made)
    made.shape, made.embed, made.positions = smaller, model.embed, model.positions
    made.layers = nn.ModuleList(model.layers[layer] for layer in kept)
    made.norm, made.head = model.norm, model.head
    return made.eval(), smaller
