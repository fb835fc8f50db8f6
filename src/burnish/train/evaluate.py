"""Held-out loss: nats per token and bits per byte, without gradients and without the whole logits."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from burnish.data.batch import IGNORED, Batch
from burnish.errors import UserError
from burnish.train.loss import batch_tensors
from burnish.train.step import Trainable


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


def evaluate_together(trainable: Trainable, batches: Sequence[Batch], index: int, count: int) -> Score:
    """The score of a trainable whose ranks judge together: each of `count` that see different rows takes every `count`-th
    batch from `index` on.

    All ranks run as many batches, the last ones without a label where they do not come out, since a forward may wait for
    those of other ranks. Every rank gets the whole score. Raises UserError, on all of them, when no batch holds a label.
    """
    rounds = -(-len(batches) // count)
    own = list(batches[index::count])
    own += [_uncounted(batches[0]) for _ in range(rounds - len(own))]
    device = next(trainable.parts[0].parameters()).device
    nats, labels = 0.0, 0
    modes = [part.training for part in trainable.parts]
    for part in trainable.parts:
        part.eval()
    try:
        with torch.no_grad():
            for batch in own:
                nats += trainable.scorer(*batch_tensors(batch, device)).to(torch.float64).item()
                labels += batch.label_count
    finally:
        for part, training in zip(trainable.parts, modes, strict=True):
            part.train(training)
    nats, labels, _, _ = trainable.ranks.share(nats, labels, 0, 0.0)
    if not labels:
        raise UserError("the held-out text holds no token to predict; give data.heldout more text")
    return Score(nats, labels)


def _uncounted(batch: Batch) -> Batch:
    return Batch(batch.ids, np.full_like(batch.labels, IGNORED), batch.positions, batch.segments)
