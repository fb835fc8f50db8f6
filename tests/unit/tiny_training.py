"""A tiny decoder, batches for it, and a trainable, for the tests of training."""

import numpy as np
import torch

from burnish.config import ModelConfig
from burnish.data.batch import IGNORED, Batch
from burnish.models.decoder import Decoder
from burnish.recipe import Optim
from burnish.train.loss import LanguageModelLoss
from burnish.train.optim import build_optimizer
from burnish.train.step import plain_trainable

VOCAB, SEQ = 37, 11
OPTIM = Optim(lr=0.01, weight_decay=0.1, clip=0.5)


def tiny_model(tied=True, seed=0):
    shape = ModelConfig(vocab=VOCAB, hidden=16, ffn=24, layers=2, heads=4, kv_heads=2, tied=tied, init_std=0.1)
    return Decoder(shape, torch.Generator().manual_seed(seed))


def tiny_trainable(tied=True, seed=0, clip=OPTIM.clip):
    model = tiny_model(tied, seed)
    loss = LanguageModelLoss(model, chunk=7)
    return plain_trainable(loss, build_optimizer(loss, OPTIM), clip)


def tiny_batch(rows, seed=0, counted=None):
    """Random rows; `counted` says how many labels of each row count (all when None)."""
    draw = np.random.default_rng(seed)
    ids, labels = draw.integers(0, VOCAB, (2, rows, SEQ))
    for row, number in enumerate(counted or ()):
        labels[row, number:] = IGNORED
    return Batch(ids, labels, np.tile(np.arange(SEQ), (rows, 1)), None)


def split(batch, sizes):
    """The same rows as micro batches of the given sizes."""
    ends = np.cumsum(sizes)
    return [
        Batch(batch.ids[a:b], batch.labels[a:b], batch.positions[a:b], None)
        for a, b in zip([0, *ends[:-1]], ends, strict=True)
    ]


def weights(trainable):
    return {name: p.detach().clone() for name, p in trainable.parts[0].named_parameters()}
