"""Merge: adapters folded into the matrices they stand beside, and what that and the rounding behind it lose.

The sum is made in float32 on the model's own weights, dequantized if they came from blocks, and rounded once, to what the file
stores. An update is small beside its matrix, so a format that keeps the matrix well may keep little of the update: its
loss is measured against the update, not the matrix.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from burnish.models.decoder import Decoder
from burnish.ops.lora import Adapter, fold_in

CLOSE = 1e-5  # of the largest logit: float32 sums in another order


def merge(model: Decoder) -> tuple[dict[str, Adapter], dict[str, bool | float | str]]:
    """Fold the adapters of `model` in, in place; gives them by name, and what of the logits of a fixed batch changed.

    Both are empty where there are none. Shares of the largest logit: `merged_logits_difference` is the largest of the middle
    token, for which `merged_equals_adapted` says whether it is within `CLOSE`, and `merged_logits_largest` that of any token:
    a deep model may blow up the rounding of one by hundreds, with adapters or without.
    """
    before = logits(model)
    adapters = fold_in(model)
    if not adapters:
        return {}, {}
    tokens = (logits(model) - before).abs().amax(-1) / before.abs().max()
    middle, largest = tokens.median().item(), tokens.max().item()
    found: dict[str, bool | float | str] = {"merged_logits_difference": middle, "merged_logits_largest": largest}
    return adapters, found | {"merged_equals_adapted": middle <= CLOSE}


@torch.no_grad()
def kept(adapters: Mapping[str, Adapter], merged: Decoder, written: Decoder) -> dict[str, bool | float | str]:
    """What a file that was written of `merged` keeps of its adapters' updates; empty without adapters.

    `written` is read from it. `update_sqnr_db`: ten times the decimal log of the updates' squares over those of what was
    rounded off the merged matrices, infinite if nothing was. `rounded_logits_difference` is a share of the largest logit.
    """
    if not adapters:
        return {}
    signal = noise = 0.0
    for name, adapter in adapters.items():
        exact, stored = (model.get_submodule(name).weight for model in (merged, written))
        assert isinstance(exact, Tensor)
        assert isinstance(stored, Tensor)
        signal += adapter.update().square().sum(dtype=torch.float64).item()
        noise += (exact.float() - stored.float()).square().sum(dtype=torch.float64).item()
    ratio = math.inf if noise == 0 else 10 * math.log10(signal / noise) if signal else -math.inf
    found: dict[str, bool | float | str] = {"adapters": _said(len(adapters), ratio)}
    if noise:
        before = logits(merged)
        found["update_sqnr_db"] = ratio
        found["rounded_logits_difference"] = _share(logits(written.to(merged.embed.weight.dtype)) - before, before)
    return found


def _said(count: int, ratio: float) -> str:
    merged = f"{count} merged in float32"
    if ratio == math.inf:
        return f"{merged}, nothing rounded off"
    less = (
        "" if ratio > 0 else "; the file rounds off more than they add: store it wider (--dtype bfloat16, float32, f16)"
    )
    side = "above" if ratio > 0 else "below"
    return f"{merged}, rounded once: what they add is {abs(ratio):.1f} dB {side} what was rounded off{less}"


@torch.no_grad()
def logits(model: Decoder) -> Tensor:
    """Scores of a fixed batch of two rows, float32 at least."""
    length = min(33, model.shape.max_positions)
    ids_BS = torch.randint(model.shape.vocab, (2, length), generator=torch.Generator().manual_seed(0))
    scores = model.logits(model(ids_BS.to(model.embed.weight.device)))
    return scores.to(torch.promote_types(scores.dtype, torch.float32))


def _share(difference: Tensor, of: Tensor) -> float:
    return (difference.abs().max() / of.abs().max()).item()
