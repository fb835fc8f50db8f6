"""Low-rank adapters on linear layers: put on, found again, folded into their matrices.

Shape letters: I inputs, O outputs, R rank. "Saved:" counts the elements a token kept for the backward pass.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from burnish.models.layers import Linear


class Adapted(Linear):
    """y = x W^T + b + scale (x A^T) B^T with W and b as they are (Hu et al. 2021, equation 3); A is `a`, B is `b`.

    Saved: x (A's gradient) and R elements (B's gradient). W needs nothing: it has no gradient.
    """

    narrow = ("a", "b")  # cheap products, which are made again rather than kept

    def __init__(self, plain: Linear, rank: int, scale: float, generator: torch.Generator) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = plain.in_features, plain.out_features
        self.weight, self.bias = plain.weight, plain.bias
        self.scale = scale
        self.a = nn.Parameter(plain.weight.new_empty(rank, plain.in_features))
        self.b = nn.Parameter(plain.weight.new_zeros(plain.out_features, rank))
        if not self.a.is_meta:
            self._draw(generator)

    @torch.no_grad()
    def _draw(self, generator: torch.Generator) -> None:
        """Uniform within 1 / sqrt(I), He et al. 2015 with a slope of sqrt(5), as PEFT has it; drawn on the CPU in float32, so
        that a seed means the same numbers everywhere."""
        bound = 1 / math.sqrt(self.in_features)
        drawn = torch.empty(self.a.shape).uniform_(-bound, bound, generator=generator)
        self.a.copy_(drawn)

    def forward(self, x: Tensor) -> Tensor:
        # The adapter first: a second forward stops where the last tensor is kept, ahead of the product with W.
        return beside(self, x).add_(super().forward(x))


def beside(layer: Adapted, x: Tensor) -> Tensor:
    """What the adapter of a layer gives."""
    return F.linear(F.linear(x, layer.a) * layer.scale, layer.b)


def put_on(model: nn.Module, names: list[str], rank: int, scale: float, generator: torch.Generator) -> None:
    """Replace the linear layers `names` of `model` by adapted ones around the same weights, in this order of draws."""
    for name in names:
        where, _, last = name.rpartition(".")
        plain = model.get_submodule(name)
        assert isinstance(plain, Linear)
        setattr(model.get_submodule(where), last, Adapted(plain, rank, scale, generator))


def adapted(model: nn.Module) -> Iterator[tuple[str, Adapted]]:
    """The adapted layers by name."""
    for name, module in model.named_modules():
        if isinstance(module, Adapted):
            yield name, module


@dataclass(frozen=True)
class Adapter:
    """What one matrix learned: scale B A, [O, I]."""

    a: Tensor  # [R, I]
    b: Tensor  # [O, R]
    scale: float

    def update(self) -> Tensor:
        """What is added to the matrix, multiplied in float32 at least."""
        wide = torch.promote_types(self.a.dtype, torch.float32)
        return (self.b.to(wide) @ self.a.to(wide)).mul_(self.scale)


@torch.no_grad()
def fold_in(model: nn.Module) -> dict[str, Adapter]:
    """Make adapted layers plain ones with W + scale B A, summed in float32 at least and rounded to W's format once.

    W is replaced, not written to. Returns the adapters by their layers' names.
    """
    found = {}
    for name, layer in list(adapted(model)):
        found[name] = Adapter(layer.a.detach(), layer.b.detach(), layer.scale)
        with torch.device("meta"):
            plain = Linear(layer.in_features, layer.out_features)
        summed = found[name].update().add_(layer.weight)
        plain.weight, plain.bias = nn.Parameter(summed.to(layer.weight.dtype)), layer.bias
        where, _, last = name.rpartition(".")
        setattr(model.get_submodule(where), last, plain)
    return found
