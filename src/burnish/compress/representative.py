"""Representative samples: is what a model is calibrated on like what it is judged on, or is it noise?

Two looks. How likely the model itself finds the tokens: text it knows nothing about costs it as many nats as a blind guess,
ln(vocabulary). And which ranges of its activations the judged text leaves: what lies outside is clipped.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import nn

from burnish.compress.samples import Samples
from burnish.errors import UserError
from burnish.ops.cross_entropy import IGNORED, chunked_cross_entropy

FAR = 2.0  # nats a token above the judged text, from which on calibration text is called unlike it
SHORT = 0.5  # characters a token, as a share of the judged text's, below which text for an encoder is
LOOKED_AT = 16  # rows


@torch.no_grad()
def surprise(model: nn.Module, samples: Samples, batch: int = 4) -> float:
    """Mean nats a decoder pays for a token of the samples, those before it in its row given; nan without two in a row."""
    nats, tokens = 0.0, 0
    device = model.get_parameter("embed.weight").device
    for ids, mask in samples.batches(batch):
        ids, mask = ids.to(device), mask.to(device)
        labels = torch.where(mask[:, 1:] & mask[:, :-1], ids[:, 1:], IGNORED)
        chosen = labels != IGNORED
        if chosen.any():
            hidden = model(ids, mask_BS=mask)[:, :-1][chosen]
            nats += float(chunked_cross_entropy(hidden, model.get_parameter("head.weight"), labels[chosen]))
            tokens += int(chosen.sum())
    return nats / tokens if tokens else math.nan


def check_likely(calibrated: float, judged: float, vocab: int, where: str) -> tuple[str, ...]:
    """What a person should know when a decoder finds its calibration text, at `calibrated` nats a token, unlikely.

    Raises UserError for noise: tokens it finds no likelier than a blind guess, though it does better on the judged text.
    """
    blind = math.log(vocab)
    if calibrated >= blind > judged:
        raise UserError(
            f"{where}: noise to this model, {calibrated:.1f} nats a token where a blind guess costs {blind:.1f} and the judged "
            f"text {judged:.1f}; calibrate on text such as the model will read"
        )
    if calibrated > judged + FAR:
        return (
            f"{where}: unlike the judged text, {calibrated:.1f} nats a token against {judged:.1f}; ranges and scales are fitted "
            "to what is calibrated on",
        )
    return ()


def check_words(
    calibrated: Sequence[str], judged: Sequence[str], tokens: tuple[int, int], where: str
) -> tuple[str, ...]:
    """The same for an encoder, which has no likelihood: of noise a tokenizer knows no words, and cuts it finer.

    `tokens`: those of all calibrated, and of all judged texts.
    """
    of_calibrated, of_judged = (
        sum(map(len, texts)) / max(count, 1) for texts, count in zip((calibrated, judged), tokens, strict=True)
    )
    if of_calibrated < SHORT * of_judged:
        return (
            f"{where}: unlike the judged text, {of_calibrated:.1f} characters a token against {of_judged:.1f}; is it text such "
            "as the model will read?",
        )
    return ()


class Outside(NamedTuple):
    """A tensor whose judged range leaves the calibrated one; `share` of the judged range lies outside."""

    name: str
    share: float


Ranges = Mapping[str, tuple[float, float]]  # tensor -> smallest and largest value


def outside(calibrated: Ranges, judged: Ranges) -> tuple[Outside, ...]:
    """The tensors that judging drives out of their calibrated range, worst first. Names of one side alone are left out."""
    found = []
    for name in calibrated.keys() & judged.keys():
        (low, high), (least, most) = calibrated[name], judged[name]
        width = most - least
        beyond = max(low - least, 0.0) + max(most - high, 0.0)
        share = min(beyond / width, 1.0) if width > 0 else float(not low <= least <= high)
        if share > 0:
            found.append(Outside(name, share))
    return tuple(sorted(found, key=lambda one: (-one.share, one.name)))
