"""Does an ONNX file say what the model says? Open it in onnxruntime and compare scores, with the cache and without.

What both read: rows of unequal length, padded on the right, then single tokens after them.

Where inputs are rounded to 8 bits, sums made in another order make an input fall to the next integer here and there, and from
layer to layer more of them; no two programs agree in every digit of such a network. So a file is also allowed what the
model differs by from itself when the last digits of its first vectors change (`shaken`).
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from burnish.export.onnx_session import Floats, OnnxDecoder, opened
from burnish.models.cache import KVCache
from burnish.models.decoder import Decoder
from burnish.models.encoder import Encoder, first_positions
from burnish.models.layers import Embedding

LENGTHS, STEPS = (19, 7, 12), 3
LAST_DIGITS, DRAWS = 3e-6, 4  # relative change of the vectors of tokens
TIMES = 3.0  # that a file may differ by, of what the change does
Pairs = list[tuple[Floats, Floats]]


@dataclass(frozen=True)
class Agreement:
    """How far a file's scores are from a model's: `difference` at most and `rms` in the mean (root of squares), of scores of up
    to `largest`; `same`: the share of positions whose likeliest token is the same."""

    difference: float
    largest: float
    same: float
    rms: float

    def within(self, allowed: float) -> bool:
        """Whether no score is off by more than this share of the largest one, or of 1 where all are smaller."""
        return self.difference <= allowed * max(1.0, self.largest)  # a NaN fails

    def like(self, least: Agreement) -> bool:
        """Whether the mean difference is that of `least`, or a small multiple."""
        return self.rms <= TIMES * least.rms

    def __str__(self) -> str:
        return f"{self.difference:.2g} at most and {self.rms:.2g} in the mean, of scores up to {self.largest:.3g}"


def agreement(pairs: Pairs) -> Agreement:
    """Of scores [.., V], the file's and the model's."""
    one, two = (np.concatenate([pair[k].reshape(-1, pair[k].shape[-1]) for pair in pairs]) for k in (0, 1))
    apart = np.abs(one - two) if np.isfinite(one).all() else np.full(one.shape, np.inf)
    same = float((one.argmax(-1) == two.argmax(-1)).mean())
    return Agreement(float(apart.max()), float(np.abs(two).max()), same, float(np.sqrt(np.square(apart).mean())))


def shaken(model: Decoder | Encoder) -> Agreement:
    """How far the model is from itself when the vectors of its tokens change in their last digits: the farthest of some draws."""
    own = _scores(model)
    found = [agreement(list(zip(_scores(_shaken_once(model, seed)), own, strict=True))) for seed in range(DRAWS)]
    return max(found, key=lambda one: one.rms)


def _shaken_once(model: Decoder | Encoder, seed: int) -> Decoder | Encoder:
    other = copy.copy(model)
    other._modules = dict(model._modules)
    with torch.device("meta"):
        other.embed = Embedding(*model.embed.weight.shape)
    by = torch.randn(model.embed.weight.shape, generator=torch.Generator().manual_seed(seed)).mul_(LAST_DIGITS).add_(1)
    other.embed.weight = nn.Parameter(model.embed.weight.detach().float() * by, requires_grad=False)
    return other


def _scores(model: Decoder | Encoder) -> list[Floats]:
    return _encoder_scores(model) if isinstance(model, Encoder) else _decoder_scores(model)


def check_decoder(path: Path, model: Decoder) -> Agreement:
    """A decoder's file beside the model: prompts of unequal length read at once, then tokens one by one from the cache."""
    file = OnnxDecoder.of(path)
    found = [file.read(ids.numpy(), mask.long().numpy())[mask.numpy()] for ids, mask in _decoder_reads(model)]
    return agreement(list(zip(found, _decoder_scores(model), strict=True)))


def _decoder_reads(model: Decoder) -> list[tuple[Tensor, Tensor]]:
    """Ids and mask (True = real) of each call, [B, S]."""
    rows, room = len(LENGTHS), model.shape.max_positions
    length = min(max(LENGTHS), max(room - STEPS, 1))
    draw = torch.Generator().manual_seed(0)
    sizes = [length] + [1] * min(STEPS, room - length)
    ids = [torch.randint(model.shape.vocab, (rows, size), generator=draw) for size in sizes]
    masks = [
        torch.arange(length) < torch.tensor(LENGTHS)[:, None],
        *(torch.ones_like(x, dtype=torch.bool) for x in ids[1:]),
    ]
    return list(zip(ids, masks, strict=True))


@torch.inference_mode()
def _decoder_scores(model: Decoder) -> list[Floats]:
    """Scores of the real tokens of each call."""
    reads = _decoder_reads(model)
    cache = KVCache(model.shape, len(LENGTHS), sum(ids.shape[1] for ids, _ in reads))
    made = [model.logits(model(ids, mask_BS=mask, cache=cache))[mask] for ids, mask in reads]
    return [scores.float().numpy() for scores in made]


def check_encoder(path: Path, model: Encoder) -> Agreement:
    """An encoder's file beside the model: hidden states of the real tokens, or scores where it has a head."""
    ids_BS, types_BS, mask_BS = _encoder_reads(model)
    given = {"input_ids": ids_BS, "attention_mask": mask_BS.long(), "token_type_ids": types_BS}
    hidden, *rest = opened(path).run(None, {name: tensor.numpy() for name, tensor in given.items()})
    keep = mask_BS.numpy()
    scores = hidden[keep] if model.head is None else rest[0] if model.shape.head == "sequence" else rest[0][keep]
    return agreement([(scores, *_encoder_scores(model))])


def _encoder_reads(model: Encoder) -> tuple[Tensor, Tensor, Tensor]:
    """Ids, types and mask (True = real), [B, S]."""
    length = min(max(LENGTHS), model.shape.table - model.shape.offset)
    draw = torch.Generator().manual_seed(0)
    sizes = (len(LENGTHS), length)
    ids_BS, types_BS = (torch.randint(high, sizes, generator=draw) for high in (model.shape.vocab, model.shape.types))
    return ids_BS, types_BS, torch.arange(length) < torch.tensor(LENGTHS)[:, None]


@torch.inference_mode()
def _encoder_scores(model: Encoder) -> list[Floats]:
    ids_BS, types_BS, mask_BS = _encoder_reads(model)
    hidden = model(ids_BS, mask_BS=mask_BS, types_BS=types_BS)
    if model.head is None:
        return [hidden[mask_BS].numpy()]
    scores = model.logits(hidden, first_positions(ids_BS, mask_BS=mask_BS))
    return [(scores if model.shape.head == "sequence" else scores[mask_BS]).numpy()]
