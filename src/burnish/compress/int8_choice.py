"""Which calibrator each kind of tensor gets: the one with which the model's last states come out nearest to what they are.

A calibrator minimises an error where it looks, and no such error knows what the rest of the network makes of it: clipping the one
large channel behind a norm costs a lot, clipping the one large token before it costs nothing. So each kind (what q, k and v read,
what o reads, ...) is tried with each calibrator in turn, from nothing clipped, on a few rows, the activations rounded and the
weights as they are.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from burnish.compress.calibrators import CALIBRATORS
from burnish.compress.int8_table import TriedRow
from burnish.compress.ranges import Seen, inputs_of
from burnish.compress.samples import Samples
from burnish.ops.int8_linear import STEPS, rounded

LOOKED_AT = 16  # rows
BETTER = 0.98  # share of the error so far that another calibrator must stay below, so that chance does not choose
FIRST = "max"
OTHERS = ("percentile", "mse", "relative", "entropy")


def kind_of(name: str) -> str:
    """`attention.q` of `layers.3.attention.q`."""
    return name.split(".", 2)[2]


def thresholds(seen: Mapping[str, Seen], percent: float, calibrator: str) -> dict[str, float]:
    """What one calibrator says of every tensor."""
    return {name: CALIBRATORS[calibrator](one.histogram, percent) for name, one in seen.items()}


def some_rows(samples: Samples, count: int = LOOKED_AT) -> Samples:
    """At most `count` rows, the same whatever order the rows are in."""
    real = [ids[mask].numpy().tobytes() for ids, mask in zip(samples.ids.cpu(), samples.mask.cpu(), strict=True)]
    order = sorted(range(len(real)), key=lambda row: hashlib.sha256(real[row]).digest())[:count]
    return Samples(samples.ids[order], samples.mask[order])


@torch.no_grad()
def choose(
    model: Any, samples: Samples, seen: Mapping[str, Seen], percent: float, divided: Mapping[str, Tensor]
) -> tuple[dict[str, str], tuple[TriedRow, ...]]:
    """(kind -> calibrator, every one tried with its error): one kind after another, the ones before as chosen."""
    rows = some_rows(samples)
    options = {name: thresholds(seen, percent, name) for name in (FIRST, *OTHERS)}
    kinds = tuple(dict.fromkeys(kind_of(name) for name in seen))
    wanted = states(model, rows)
    chosen = dict.fromkeys(kinds, FIRST)

    def error_with(own: Mapping[str, str]) -> float:
        picked = {name: options[own[kind_of(name)]][name] for name in seen}
        with rounding(model, picked, divided):
            return apart(states(model, rows), wanted)

    least = error_with(chosen)
    tried = [TriedRow(kind="all", calibrator=FIRST, error=least)]
    for kind in kinds:
        for calibrator in OTHERS:
            found = error_with(chosen | {kind: calibrator})
            tried.append(TriedRow(kind=kind, calibrator=calibrator, error=found))
            if found < BETTER * least:
                least, chosen = found, chosen | {kind: calibrator}
    return chosen, tuple(tried)


@torch.no_grad()
def states(model: Any, samples: Samples, batch: int = 8) -> list[Tensor]:
    """The last states of real tokens, [T, H] a batch."""
    device = next(model.parameters()).device
    return [model(ids.to(device), mask_BS=mask.to(device))[mask.to(device)] for ids, mask in samples.batches(batch)]


def apart(found: list[Tensor], wanted: list[Tensor]) -> float:
    """Mean over tokens of the squared distance relative to the wanted state's square."""
    shares = [
        (a.double() - b.double()).square().sum(1) / b.double().square().sum(1)
        for a, b in zip(found, wanted, strict=True)
    ]
    return float(torch.cat(shares).mean())


@contextmanager
def rounding(model: Any, picked: Mapping[str, float], divided: Mapping[str, Tensor]) -> Iterator[None]:
    """Round what the matrices read, once divided by the folds' scales, as 8-bit inputs are."""

    def hook(name: str) -> Callable[[nn.Module, tuple[Any, ...]], Tensor]:
        def given(_: nn.Module, inputs: tuple[Any, ...]) -> Tensor:
            x: Tensor = inputs[0]
            step = torch.tensor(picked[name] / STEPS or 1.0, device=x.device)
            if name not in divided:
                return (rounded(x, step) * step).to(x.dtype)
            scale = divided[name].to(x.device)
            return (rounded(x / scale, step) * step * scale).to(x.dtype)

        return given

    handles = [
        model.get_submodule(matrix).register_forward_pre_hook(hook(name))
        for name, matrices in inputs_of(model).items()
        for matrix in matrices
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
