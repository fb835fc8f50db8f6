"""Smoothing: channels of large activations divided, and the matrices that read them multiplied, before both are rounded.

Xiao et al. 2022, "SmoothQuant" (arXiv 2211.10438), equation 4: s_c = max |x_c|^a / max |w_c|^(1 - a). The scale goes into what
makes the activation (`compress.fold`), so that it costs nothing when the model runs. The strength `a` is searched for each fold.

The error that is compared is that of the product, both roundings taken as noise of a twelfth of a step's square (Widrow and Kollar
2008, section 4): with d_x = max_c(|x_c| / s_c) / 127 and d_o = max_c |w_oc s_c| / 127,

    error(s) = d_x^2 / 12 sum_oc (w_oc s_c)^2  +  sum_o d_o^2 / 12 sum_c mean(x_c^2) / s_c^2

so that the largest value and the mean square of each channel are all that is needed of the samples.

Shape letters: O outputs of all that read, I their inputs, C channels of the source.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from burnish.compress.fold import ATTENTION, Fold, folds_of, repeats, widened
from burnish.compress.ranges import Channels
from burnish.models.decoder import Decoder

STEPS = 127
LEAST = 1e-5  # of a channel's largest value, as in the authors' code
# Norms of an encoder stand behind the sums and feed the next sum too, so only values can be scaled there.
ENCODER = ATTENTION[1:]


def folds_in(model: Any) -> tuple[Fold, ...]:
    """The folds of a layer of this decoder or encoder."""
    return folds_of(model.shape) if isinstance(model, Decoder) else ENCODER  # type: ignore[arg-type]


def error(weight_OI: Tensor, known: Channels, scale_I: Tensor) -> float:
    """The mean squared error a token, summed over outputs, that both roundings are expected to give."""
    scaled = weight_OI.double() * scale_I.double()
    input_step = float((known.largest.double() / scale_I.double()).max()) / STEPS
    output_steps = scaled.abs().amax(1) / STEPS
    kept = known.squares / max(known.tokens, 1) / scale_I.double().square()
    return float(input_step**2 * scaled.square().sum() + output_steps.square().sum() * kept.sum()) / 12


def strength_scale(weight_OI: Tensor, known: Channels, strength: float, block: Any, fold: Fold) -> Tensor:
    """The scale of the source's channels [C] at one strength."""
    largest = _per_channel(known.largest, block, fold).clamp(min=LEAST)
    weights = _per_channel(weight_OI.float().abs().amax(0).cpu(), block, fold).clamp(min=LEAST)
    return (largest**strength / weights ** (1 - strength)).clamp(min=LEAST)


def _per_channel(values_I: Tensor, block: Any, fold: Fold) -> Tensor:
    """The largest of the inputs that read one channel of the source."""
    times, size = repeats(block, fold)
    return values_I.unflatten(-1, (-1, times, size)).amax(-2).flatten(-2)


def best(
    block: Any, fold: Fold, known: Channels, strengths: Sequence[float]
) -> tuple[float | None, Tensor, float, float]:
    """(strength, scale [C], its error, the error without) of one fold; strength None where no scale is best."""
    weight_OI = torch.cat([block.get_submodule(name).weight.detach() for name in fold.readers]).cpu()
    size = repeats(block, fold)
    chosen: tuple[float | None, Tensor] = None, torch.ones(len(known.largest) // size[0])
    least = plain = error(weight_OI, known, torch.ones(len(known.largest)))
    for strength in strengths:
        scale_C = strength_scale(weight_OI, known, strength, block, fold)
        found = error(weight_OI, known, widened(scale_C, block, fold))
        if found < least:
            least, chosen = found, (strength, scale_C)
    return *chosen, least, plain
