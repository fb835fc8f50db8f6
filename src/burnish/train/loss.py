"""The language-model loss as one module: token ids in, summed negative log likelihood out."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from burnish.data.batch import Batch
from burnish.models.decoder import Decoder
from burnish.ops.cross_entropy import CHUNK, chunked_cross_entropy
from burnish.ops.vocabulary import Vocabulary

Pieces = tuple[tuple[int, ...], ...]


class LanguageModelLoss(nn.Module):
    """Decoder and chunked cross entropy together, so that whatever wraps it sees forward and loss as one call."""

    def __init__(self, model: Decoder, chunk: int = CHUNK) -> None:
        super().__init__()
        self.model = model
        self.chunk = chunk
        self.vocabulary: Vocabulary | None = None  # how the head's words are divided over ranks, where they are

    def forward(
        self, ids_BS: Tensor, labels_BS: Tensor, positions_BS: Tensor | None = None, segments: Pieces | None = None
    ) -> Tensor:
        """Sum over labels other than -100 of the negative log likelihood, in nats; a float32 scalar.

        Labels are already shifted: labels[b, s] is the token after ids[b, s].
        """
        hidden_BSH = self.model(ids_BS, positions_BS, segments)
        hidden = hidden_BSH.flatten(0, 1) if self.vocabulary is None else hidden_BSH
        weight, labels = self.model.head.weight, labels_BS.flatten()
        return chunked_cross_entropy(hidden, weight, labels, self.chunk, self.vocabulary)


def batch_tensors(batch: Any, device: torch.device) -> tuple[Any, ...]:
    """The arguments of a loss for one batch. Rows of one piece count their positions in the model; a batch that is not one
    of rows has its own `tensors(device)`."""
    if not isinstance(batch, Batch):
        made: tuple[Any, ...] = batch.tensors(device)
        return made
    ids, labels = (torch.from_numpy(array).to(device) for array in (batch.ids, batch.labels))
    if batch.segments is None:
        return ids, labels, None, None
    return ids, labels, torch.from_numpy(batch.positions).to(device), batch.segments
