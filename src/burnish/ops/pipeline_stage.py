"""A chunk of a decoder's layers as a module of its own, with the embedding where it is the first and the loss where it is
the last.

It takes the decoder's own modules under the decoder's own names; which chunk has which layers is the caller's choice. Ids,
positions and the pieces of packed rows come from the batch, which every stage reads, so that only hidden states are sent.

Shape letters: B rows, S positions, H hidden size; s positions of this rank, where tensor-parallel ranks divide them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn

from burnish.models.decoder import Decoder
from burnish.models.rotary import rotary_angles
from burnish.models.view import mask_dtype, view
from burnish.ops.cross_entropy import chunked_cross_entropy

Pieces = tuple[tuple[int, ...], ...]


class StageDecoder(nn.Module):
    """Some layers of a decoder, called as they are there: `layers.7` is the eighth on whichever stage it stands."""

    def __init__(self, decoder: Decoder, layers: Iterable[int], first: bool, last: bool) -> None:
        super().__init__()
        self.shape = decoder.shape
        self.embed = decoder.embed if first else None
        self.positions = decoder.positions if first else None
        self.layers = nn.ModuleList()
        for index in layers:
            self.layers.add_module(str(index), decoder.layers[index])
        self.norm = decoder.norm if last else None
        self.head = decoder.head if last else None

    def forward(
        self, x_BsH: Tensor | None, ids_BS: Tensor, positions_BS: Tensor | None, segments: Pieces | None
    ) -> Tensor:
        """Hidden states behind the last of its layers [B, s, H]; `x_BsH` is None where the embedding makes them."""
        shape = self.shape
        if self.embed is not None:
            x_BsH = self.embed(ids_BS)
        assert x_BsH is not None
        seen = view(ids_BS, segments, None, None, shape.window, mask_dtype(self.layers, x_BsH.dtype))
        positions_BS = seen.positions if positions_BS is None else positions_BS
        if self.positions is not None:
            x_BsH = x_BsH + self.positions(positions_BS)
        rotary = None
        if not shape.traits.learned_positions:
            rotary = rotary_angles(positions_BS, shape.head_dim, shape.rope_theta, x_BsH.dtype, shape.rope_scaling)
        for name, layer in self.layers.named_children():
            near = shape.window and int(name) >= shape.window_from
            x_BsH = layer(x_BsH, rotary, seen.near if near else seen.whole)
        return x_BsH if self.norm is None else self.norm(x_BsH)


class Stage(nn.Module):
    """What one chunk computes: hidden states from hidden states, or at the end the summed loss, in nats."""

    def __init__(self, loss: Any, layers: Iterable[int], first: bool, last: bool) -> None:
        """`loss` is a `LanguageModelLoss`, of which this takes what it needs."""
        super().__init__()
        self.model = StageDecoder(loss.model, layers, first, last)
        self.chunk, self.vocabulary = loss.chunk, loss.vocabulary

    def forward(
        self,
        x_BsH: Tensor | None,
        ids_BS: Tensor,
        labels_BS: Tensor,
        positions_BS: Tensor | None = None,
        segments: Pieces | None = None,
    ) -> Tensor:
        """Hidden states [B, s, H]; on the last chunk the sum over labels other than -100 of the negative log likelihood."""
        hidden_BsH = self.model(x_BsH, ids_BS, positions_BS, segments)
        if self.model.head is None:
            return hidden_BsH
        rows = hidden_BsH.flatten(0, 1) if self.vocabulary is None else hidden_BsH
        return chunked_cross_entropy(
            rows, self.model.head.weight, labels_BS.flatten(), self.chunk, vocabulary=self.vocabulary
        )
