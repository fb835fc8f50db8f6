"""Compiled layers: torch.compile as an option that is measured on the run's own shapes, not assumed to pay."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

TRIALS = 3


@dataclass(frozen=True)
class Outcome:
    """Whether the layers are compiled now, and the sentence a report gives as the reason."""

    compiled: bool
    reason: str


def compile_layers(model: nn.Module) -> None:
    """Compile every layer of a decoder in place; all layers share one compiled form."""
    for layer in model.layers:  # type: ignore[union-attr]
        layer.compile(dynamic=False)


def plain_layers(model: nn.Module) -> None:
    """Undo `compile_layers`."""
    for layer in model.layers:  # type: ignore[union-attr]
        layer._compiled_call_impl = None


def compile_if_it_pays(model: nn.Module, once: Callable[[], object], steps: int) -> Outcome:
    """Time `once` (one forward and backward) plain and compiled; keep the compiled layers when, over `steps` more
    calls, they save more than compiling took. A compiler that fails leaves the model plain."""
    once()
    plain = _median(once)
    compile_layers(model)
    began = time.perf_counter()
    try:
        once()
    except Exception as error:
        plain_layers(model)
        torch._dynamo.reset()
        return Outcome(
            False, f"compile off: it failed here ({type(error).__name__}: {str(error).splitlines()[0][:100]})"
        )
    took = time.perf_counter() - began
    compiled = _median(once)
    saved = (plain - compiled) * steps
    figures = f"{plain:.3f} s plain, {compiled:.3f} s compiled ({plain / compiled:.2f}x), {took:.0f} s to compile, {steps} steps"
    if saved > took:
        return Outcome(True, f"compile on: {figures}")
    plain_layers(model)
    return Outcome(False, f"compile off: does not pay here: {figures}")


def _median(once: Callable[[], object]) -> float:
    times = []
    for _ in range(TRIALS):
        began = time.perf_counter()
        once()
        times.append(time.perf_counter() - began)
    return statistics.median(times)
