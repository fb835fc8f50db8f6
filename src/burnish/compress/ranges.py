"""Ranges: what the matrices of a model read while samples pass, as streaming statistics; padding left out.

Matrices that read one tensor share what is known of it. Nothing of the samples is kept but counts and largest values, so that the
memory does not grow with them.

Shape letters: T real tokens of a batch, I inputs of a matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from burnish.compress.histogram import Histogram
from burnish.compress.representative import Ranges
from burnish.compress.samples import Samples
from burnish.errors import UserError

ROWS = 8  # of a batch
# Matrices of a layer that read one tensor, which goes by the name of the first of them that there is.
TOGETHER = (
    ("attention.q", "attention.k", "attention.v"),
    ("attention.o",),
    ("mlp.gate", "mlp.up"),
    ("mlp.down",),
)


@dataclass
class Channels:
    """Of each input: the largest magnitude, and the sum of squares over `tokens`."""

    largest: Tensor
    squares: Tensor
    tokens: int = 0

    @classmethod
    def of(cls, inputs: int) -> Channels:
        """Nothing seen."""
        return cls(torch.zeros(inputs), torch.zeros(inputs, dtype=torch.float64))

    def add(self, x_TI: Tensor) -> None:
        """Take in tokens [T, I]."""
        x_TI = x_TI.detach().float().cpu()
        self.largest = torch.maximum(self.largest, x_TI.abs().amax(0))
        self.squares += x_TI.double().square().sum(0)
        self.tokens += len(x_TI)


@dataclass
class Seen:
    """All values of one tensor: their magnitudes, the smallest and the largest."""

    histogram: Histogram = field(default_factory=Histogram)
    low: float = 0.0
    high: float = 0.0

    def add(self, x_TI: Tensor) -> None:
        """Take in tokens [T, I]. Raises ValueError where a value is not finite."""
        self.histogram.add(x_TI)
        low, high = x_TI.aminmax()
        self.low, self.high = min(self.low, float(low)), max(self.high, float(high))


def inputs_of(model: Any) -> dict[str, tuple[str, ...]]:
    """The tensors that matrices of layers read: name -> the matrices, `layers.0.attention.q` and so on."""
    found = {}
    for number, layer in enumerate(model.layers):
        known = {name for name, module in layer.named_modules() if isinstance(module, nn.Linear)}
        for names in TOGETHER:
            own = tuple(f"layers.{number}.{name}" for name in names if name in known)
            if own:
                found[own[0]] = own
    return found


@torch.no_grad()
def watch(model: Any, samples: Samples, take: Callable[[str, Tensor], None], rows: int = ROWS) -> None:
    """Give `take` the real tokens [T, I] of every tensor of `inputs_of`, batch by batch.

    Raises UserError naming the layer where a value is not finite.
    """
    device = next(model.parameters()).device
    held: dict[str, Tensor] = {}

    def hook(name: str) -> Callable[[nn.Module, tuple[Any, ...]], None]:
        def tell(_: nn.Module, given: tuple[Any, ...]) -> None:
            try:
                take(name, given[0][held["mask"]])
            except ValueError as error:
                raise UserError(f"{name}: its inputs hold {error}; is the model sound?") from None

        return tell

    handles = [model.get_submodule(name).register_forward_pre_hook(hook(name)) for name in inputs_of(model)]
    try:
        for ids, mask in samples.batches(rows):
            held["mask"] = mask.to(device)
            model(ids.to(device), mask_BS=held["mask"])
    finally:
        for handle in handles:
            handle.remove()


def channels(model: Any, samples: Samples, rows: int = ROWS) -> dict[str, Channels]:
    """What is known of each input of every tensor."""
    found: dict[str, Channels] = {}

    def take(name: str, x_TI: Tensor) -> None:
        if not bool(torch.isfinite(x_TI).all()):
            raise ValueError("a value that is not finite")
        found.setdefault(name, Channels.of(x_TI.shape[1])).add(x_TI)

    watch(model, samples, take, rows)
    return found


def ranges(
    model: Any, samples: Samples, divided: Mapping[str, Tensor] | None = None, rows: int = ROWS
) -> dict[str, Seen]:
    """The values of every tensor; those named in `divided` as they are once their inputs are divided by it [I]."""
    found: dict[str, Seen] = {}
    scales = dict(divided or {})

    def take(name: str, x_TI: Tensor) -> None:
        found.setdefault(name, Seen()).add(x_TI / scales[name].to(x_TI) if name in scales else x_TI)

    watch(model, samples, take, rows)
    return found


def edges(found: Mapping[str, Seen]) -> Ranges:
    """Smallest and largest value of every tensor, as `representative.outside` compares them."""
    return {name: (seen.low, seen.high) for name, seen in found.items()}
