"""Held-out loss: nats per token and bits per byte, without gradients and without the whole logits."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import nn

from burnish.data.batch import Batch
from burnish.errors import UserError
from burnish.train.loss import batch_tensors


class Score(NamedTuple):
    """Total negative log likelihood in nats over a number of labels."""

    nats: float
    labels: int

    @property
    def loss(self) -> float:
        """Mean nats per label."""
        return self.nats / self.labels

    def bits_per_byte(self, text_bytes: int) -> float:
        """Bits per byte of the text the labels cover: comparable between tokenizers (Gao et al. 2020, section 3.1)."""
        return self.nats / math.log(2) / text_bytes


def evaluate(loss: nn.Module, batches: Iterable[Batch]) -> Score:
    """Score a model on batches that each count once; `loss` gives the summed loss of a batch.

    Raises UserError when no batch holds a label.
    """
    device = next(loss.parameters()).device
    nats = torch.zeros((), dtype=torch.float64, device=device)
    labels = 0
    training = loss.training
    loss.eval()
    try:
        with torch.no_grad():
            for batch in batches:
                if counted := batch.label_count:
                    nats += loss(*batch_tensors(batch, device))
                    labels += counted
    finally:
        loss.train(training)
    if not labels:
        raise UserError("the held-out text holds no token to predict; give data.heldout more text")
    return Score(nats.item(), labels)
