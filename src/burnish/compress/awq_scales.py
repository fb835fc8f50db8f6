"""Scale search: of a grid of scales for a fold's channels the one whose rounded matrices err least.

Lin et al. 2023 (arXiv 2306.00978), section 3.2: W is rounded as round(W diag(s)) diag(s)^-1, which takes the step of a group
from its largest weight but the error of a channel down by its s. With x the mean |activation| and w the mean |weight| of a
channel, each weight in parts of its group's largest:

    activation: s = x^r               duo: s = x^r / (w^(1 - r) + 1e-4)             each over sqrt(max s * min s)

r runs over `ratios` steps. No scale at all is always among the candidates, so that no fold is worse than rounding alone. The
error is tr(D C D^T) (`burnish.compress.gram`), summed over the matrices that read the channels. All candidates are tried on a
part of the outputs, the best few on all.

Shape letters: O outputs, I inputs of a matrix, C channels of a fold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from burnish.compress.gram import loss
from burnish.compress.rtn import grouped, restored, steps
from burnish.weight_format import IntWeights

TRIED = 128  # outputs of a matrix at least that all candidates are tried on
SHARE = 8  # one in so many of a larger one
FINALISTS = 3
MARGIN = 1e-3  # what a candidate has to gain: rounding to the file's format may not turn it into a loss
LEAST = 1e-4  # of a scale before it is made relative
DIGITS = 6  # of a scale that are kept, so that a table is text
IDENTITY = "identity"


@dataclass(frozen=True)
class Settings:
    """What is searched: the integers, which families of scales, steps of their ratio, whether ranges are clipped."""

    scheme: IntWeights
    families: tuple[str, ...] = ("activation", "duo")
    ratios: int = 20
    clip: bool = True


class Part(NamedTuple):
    """A matrix [O, I] and the Gram matrix of what it reads [I, I], over all tokens of the layer."""

    weight: Tensor
    gram: Tensor


class Candidate(NamedTuple):
    """A scale of a fold's channels [C] and where it comes from."""

    family: str
    ratio: float
    scale: Tensor


class Best(NamedTuple):
    """The scale that was chosen, its error, and that of rounding alone."""

    candidate: Candidate
    loss: float
    rounded: float


def search(
    parts: Sequence[Part],
    magnitude_C: Tensor,
    settings: Settings,
    widen: Callable[[Tensor], Tensor],
    pool: Callable[[Tensor], Tensor],
) -> Best:
    """The best scale for the channels that `parts` read; `widen` makes inputs [I] of channels [C], `pool` the reverse."""
    plain = Candidate(IDENTITY, 0.0, torch.ones_like(magnitude_C))
    found = list(candidates(parts, magnitude_C, settings, pool))
    cut = [(part.weight[:: stride(len(part.weight))], part.gram) for part in parts]
    few = [Part(*pair) for pair in cut]
    tried = [(error(few, widen(one.scale), settings.scheme), number) for number, one in enumerate(found)]
    finalists = [found[number] for _, number in sorted(tried)[:FINALISTS]]
    rounded = error(parts, widen(plain.scale), settings.scheme)
    best, least = plain, rounded * (1 - MARGIN)
    for one in finalists:
        kept = one._replace(scale=shortened(one.scale))
        if (own := error(parts, widen(kept.scale), settings.scheme)) < least:
            best, least = kept, own
    return Best(best, rounded if best is plain else least, rounded)


def stride(outputs: int) -> int:
    """Every how many-th output of a matrix all candidates are tried on."""
    return max(1, min(SHARE, outputs // TRIED))


def candidates(
    parts: Sequence[Part], magnitude_C: Tensor, settings: Settings, pool: Callable[[Tensor], Tensor]
) -> Iterator[Candidate]:
    """Every family's scales; a ratio that gives none that is finite is left out."""
    weights_C = pool(relative_weights(parts, settings.scheme))
    for family in settings.families:
        for number in range(settings.ratios):
            ratio = (number + (family == "activation")) / settings.ratios  # x^0 is no scale at all
            scale = magnitude_C**ratio
            if family == "duo":
                scale = scale / (weights_C ** (1 - ratio) + LEAST)
            scale = scale.clamp(min=LEAST)
            scale = scale / (scale.max() * scale.min()).sqrt()
            if bool(torch.isfinite(scale).all()):
                yield Candidate(family, ratio, scale)


def relative_weights(parts: Sequence[Part], scheme: IntWeights) -> Tensor:
    """Mean over all outputs of |w| in parts of its group's largest, for each input [I]."""
    total, outputs = torch.zeros(parts[0].weight.shape[1]), 0
    for part in parts:
        sizes = grouped(part.weight, scheme).abs()
        total += sizes.div_(sizes.amax(-1, keepdim=True) + 1e-6).flatten(1).sum(0)
        outputs += len(part.weight)
    return total / outputs


def error(parts: Sequence[Part], wide_I: Tensor, scheme: IntWeights) -> float:
    """tr(D C D^T) over all parts, their inputs scaled by `wide_I` before rounding and back after."""
    return sum(loss(change(part.weight, wide_I, scheme), part.gram) for part in parts)


def change(weight_OI: Tensor, wide_I: Tensor, scheme: IntWeights) -> Tensor:
    """What rounding the scaled matrix does to it, in its own units [O, I]."""
    scaled = weight_OI * wide_I
    parts = grouped(scaled, scheme)
    made = restored(parts, steps(parts, scheme)).view_as(scaled)
    return made.sub_(scaled).div_(wide_I)


def shortened(scale: Tensor) -> Tensor:
    """A scale of a few digits, which a table gives back as it is."""
    return torch.tensor([float(f"{value:.{DIGITS}g}") for value in scale.tolist()], dtype=scale.dtype)
