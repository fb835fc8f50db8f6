"""Judged ranges: how far the text that a model is judged on drives the tensors whose ranges were calibrated on other text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from burnish.compress.representative import Ranges, outside
from burnish.compress.samples import Samples

TOLD = 0.1  # share of a judged range outside the calibrated one from which on a person is told
NAMED = 3  # tensors


@torch.no_grad()
def ranges_in(model: nn.Module, names: Sequence[str], samples: Samples, rows: int = 4) -> Ranges:
    """Smallest and largest value that each of the modules `names` reads of real tokens."""
    found: dict[str, tuple[float, float]] = {}
    held: list[Tensor] = []

    def hook(name: str) -> Callable[[nn.Module, tuple[Any, ...]], None]:
        def tell(_: nn.Module, given: tuple[Any, ...]) -> None:
            low, high = given[0][held[-1]].aminmax()
            before = found.get(name, (float("inf"), float("-inf")))
            found[name] = min(before[0], float(low)), max(before[1], float(high))

        return tell

    handles = [model.get_submodule(name).register_forward_pre_hook(hook(name)) for name in names]
    device = model.get_parameter("embed.weight").device
    try:
        for ids, mask in samples.batches(rows):
            held.append(mask.to(device))
            model(ids.to(device), mask_BS=held[-1])
    finally:
        for handle in handles:
            handle.remove()
    return found


def told(table: Any, model: nn.Module, samples: Samples) -> tuple[str, ...]:
    """What a person should know of a table of calibrated ranges (`inputs`, rows with name, low and high) on judged text."""
    rows = {row.name: (row.low, row.high) for row in getattr(table, "inputs", ())}
    left = [one for one in outside(rows, ranges_in(model, list(rows), samples)) if one.share >= TOLD] if rows else []
    if not left:
        return ()
    worst = ", ".join(f"{one.name} ({100 * one.share:.0f} %)" for one in left[:NAMED])
    return (
        f"{len(left)} of {len(rows)} tensors leave their calibrated range on the judged text by {TOLD:.0%} of theirs or more: "
        f"{worst}; calibrate on text more like it",
    )
