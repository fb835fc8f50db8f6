"""Folds: where a layer's channels can be divided by a scale and what reads them multiplied by it, with the same results.

    norm -> q, k, v           the norm's weight and bias divided, the matrices' inputs multiplied
    v -> o                    attention mixes positions, not channels. With grouped heads several query heads read one value
                              head, so that the scale has one entry a value channel and is repeated for its query heads
    norm -> gate, up (router) as the first; a router reads the norm too and takes the scale, though it is not compressed
    up -> down                act(gate) * up is linear in up; never through gate. Through gelu alone there is none

After Lin et al. 2023 (arXiv 2306.00978), section 3.2, whose code leaves out grouped heads and routers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from burnish.config import ModelConfig


@dataclass(frozen=True)
class Fold:
    """Names within a layer: whose output is divided, the matrices that read it, and what else does."""

    source: str
    matrices: tuple[str, ...]
    others: tuple[str, ...] = ()

    @property
    def readers(self) -> tuple[str, ...]:
        """All that reads it."""
        return (*self.matrices, *self.others)


ATTENTION = (
    Fold("attention_norm", ("attention.q", "attention.k", "attention.v")),
    Fold("attention.v", ("attention.o",)),
)
GATED = (Fold("mlp_norm", ("mlp.gate", "mlp.up")), Fold("mlp.up", ("mlp.down",)))
PLAIN = (Fold("mlp_norm", ("mlp.up",)),)
ROUTED = (Fold("mlp_norm", ("mlp.up",), ("mlp.router",)), Fold("mlp.up", ("mlp.down",)))


def folds_of(config: ModelConfig) -> tuple[Fold, ...]:
    """The folds of a layer of this family."""
    traits = config.traits
    return ATTENTION + (ROUTED if traits.routed else GATED if traits.gated else PLAIN)


def matrices_of(config: ModelConfig) -> tuple[str, ...]:
    """The matrices of a layer, in order."""
    found = [name for fold in folds_of(config) for name in fold.matrices]
    return tuple(dict.fromkeys([*found, "mlp.down"]))


def experts_of(block: nn.Module, matrix: str) -> int:
    """How many matrices lie in this one, one below another: those of experts, else 1."""
    count = getattr(block.get_submodule(matrix.rsplit(".", 1)[0]), "count", 1)
    return count if matrix.startswith("mlp.") and not matrix.endswith("router") else 1


def repeats(block: Any, fold: Fold) -> tuple[int, int]:
    """(times each value head is read, size of a head); (1, 1) for folds without heads."""
    if fold.source != "attention.v":
        return 1, 1
    attention = block.attention
    return attention.o.in_features // attention.v.out_features, attention.head_dim


def widened(scale: Tensor, block: Any, fold: Fold) -> Tensor:
    """A scale of the source's channels [.., C] as one of the readers' inputs [.., I]."""
    times, size = repeats(block, fold)
    return scale.unflatten(-1, (-1, 1, size)).expand(*scale.shape[:-1], -1, times, size).flatten(-3)


def pooled(values: Tensor, block: Any, fold: Fold) -> Tensor:
    """A statistic of the readers' inputs [.., I] as one of the source's channels [.., C]: the mean over who reads one."""
    times, size = repeats(block, fold)
    return values.unflatten(-1, (-1, times, size)).mean(-2).flatten(-2)


@torch.no_grad()
def apply_fold(block: Any, fold: Fold, scale: Tensor) -> None:
    """Divide the source by `scale` [C], or [E, C] for experts with a scale each, and multiply what reads it; in place."""
    source = block.get_submodule(fold.source)
    wide = widened(scale, block, fold)
    for name in fold.readers:
        weight = block.get_submodule(name).weight
        # Experts read one norm, or each its own rows.
        parts = weight.view(len(scale), -1, weight.shape[1]) if scale.dim() == 2 else weight
        parts.mul_(wide.unsqueeze(-2).to(weight.dtype))
    if source.weight.dim() == 1:
        source.weight.div_(scale.to(source.weight.dtype))
    elif scale.dim() == 2:  # an expert's gate lies above its up
        rows = source.weight.view(len(scale), 2, -1, source.weight.shape[1])
        rows[:, 1].div_(scale.unsqueeze(-1).to(source.weight.dtype))
    else:
        source.weight.div_(scale.unsqueeze(-1).to(source.weight.dtype))
    if getattr(source, "bias", None) is not None:
        source.bias.div_(scale.to(source.bias.dtype))
