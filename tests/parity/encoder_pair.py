"""The same small random encoder twice: ours and transformers', and batches whose rows differ in length."""

from __future__ import annotations

import torch
import transformers
from torch import Tensor, nn

from burnish.encoders.config import EncoderConfig
from burnish.export.encoder import encoder_for_file
from burnish.models.encoder import Encoder
from burnish.tables.encoders import ENCODERS

BASE = EncoderConfig(vocab=101, hidden=48, ffn=80, layers=3, heads=6, table=96, init_std=0.2)
CLASSES = ("no", "yes", "perhaps")
SHAPES = {
    "bare": BASE,
    "no pooler": BASE.model_copy(update={"pooler": False}),
    "classes": BASE.model_copy(update={"head": "sequence", "labels": CLASSES}),
    "token classes": BASE.model_copy(update={"head": "tokens", "labels": CLASSES, "pooler": False}),
    "odd sizes": EncoderConfig(
        vocab=97, hidden=35, ffn=53, layers=2, heads=5, table=31, types=3, pad=7, norm_eps=1e-6, init_std=0.3
    ),
    "gelu_new": BASE.model_copy(update={"activation": "gelu_new", "head": "sequence", "labels": ("a",)}),
    "relu": BASE.model_copy(update={"activation": "relu"}),
    "roberta": BASE.model_copy(update={"family": "roberta", "pad": 1, "types": 1}),
    "roberta classes": BASE.model_copy(
        update={"family": "roberta", "pad": 1, "types": 1, "head": "sequence", "labels": CLASSES}
    ),
}
LENGTHS = (17, 5, 12)  # real tokens of each row


def pair(config: EncoderConfig, seed: int = 0) -> tuple[Encoder, nn.Module]:
    """Both networks with the same weights; vectors differ from 1 and 0, so that leaving one out shows."""
    ours = Encoder(config, torch.Generator().manual_seed(seed)).eval()
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in ours.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn(parameter.shape, generator=draw), alpha=0.3)
    kind = getattr(transformers, ENCODERS[config.family].heads[config.head].architecture)
    settings = transformers.AutoConfig.for_model(**config.to_hf())
    extra = {} if config.head != "none" else {"add_pooling_layer": config.pooler}
    theirs = kind(settings, **extra).eval()
    theirs.load_state_dict(encoder_for_file(ours, config))
    return ours, theirs


def batch(config: EncoderConfig, side: str = "right", seed: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    """ids, mask (True = real) and types, each [3, 17], rows of LENGTHS padded on `side`."""
    draw = torch.Generator().manual_seed(seed)
    shape = (len(LENGTHS), max(LENGTHS))
    ids, types = (torch.randint(high, shape, generator=draw) for high in (config.vocab, config.types))
    ids = torch.where(ids == config.pad, config.pad + 1, ids)
    column, lengths = torch.arange(max(LENGTHS)), torch.tensor(LENGTHS)[:, None]
    mask = column < lengths if side == "right" else column >= max(LENGTHS) - lengths
    return torch.where(mask, ids, config.pad), mask, types


def their_answer(theirs: nn.Module, config: EncoderConfig, ids: Tensor, mask: Tensor, types: Tensor) -> list[Tensor]:
    """What transformers gives for whole or padded rows: hidden states and pooled, or logits, text by text."""
    answers = []
    for row, keep, kinds in zip(ids, mask, types, strict=True):
        out = theirs(row[keep][None], attention_mask=torch.ones_like(row[keep][None]), token_type_ids=kinds[keep][None])
        answers.append(out.logits[0] if config.head != "none" else out.last_hidden_state[0])
    return answers
