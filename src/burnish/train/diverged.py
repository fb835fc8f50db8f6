"""Where a step stopped being finite: the first module or parameter to blame, found by one watched pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from burnish.crew import ALONE, Crew
from burnish.data.batch import Batch
from burnish.groups import local
from burnish.train.step import Trainable, backward, gradients_of

GRADIENT = "gradient of "


class _Found(Exception):  # ends the watched pass early; it is no error
    def __init__(self, where: str) -> None:
        self.where = where


def first_bad_parameter(parts: list[nn.Module]) -> str | None:
    """The first parameter with a value that is not finite."""
    for part in parts:
        for name, parameter in part.named_parameters():
            if not _finite(parameter):
                return f"parameter {name}"
    return None


def first_bad_of(trainable: Trainable, micros: list[Batch], crew: Crew = ALONE) -> str:
    """As `first_bad`, of all ranks: what the lowest rank finds in its forward, else in its gradients.

    Every rank goes through the whole pass, for its collectives wait for those of others.
    """
    if crew.world == 1:
        return first_bad(trainable.parts, micros)
    found: list[str] = []
    if not any(crew.gather(bad := first_bad_parameter(trainable.parts))):
        handles = _watch(trainable.parts, found.append)
        try:
            gradients_of(trainable, micros)
        finally:
            _forget(trainable.parts, handles)
        trainable.ranks.updated()
    mine = bad or (found[0] if found else None)
    named = [(rank, where) for rank, where in enumerate(crew.gather(mine)) if where is not None]
    # A gradient may be the sum of those of all ranks: what a rank's own forward shows comes before it.
    for rank, where in sorted(named, key=lambda each: each[1].startswith(GRADIENT)):
        return f"{where} of rank {rank}"
    return "the sum over all ranks, each of which is finite"


def bad_parameter_of(trainable: Trainable, crew: Crew = ALONE) -> str | None:
    """As `first_bad_parameter`, of all ranks."""
    return next(filter(None, crew.gather(first_bad_parameter(trainable.parts))), None)


def first_bad(parts: list[nn.Module], micros: list[Batch]) -> str:
    """What first stops being finite in a forward and backward pass over `micros`, innermost module first.

    In this order: a parameter, a module's output, the loss, a parameter's gradient (from the last layer backwards).
    The gradients this pass makes are dropped.
    """
    if bad := first_bad_parameter(parts):
        return bad
    handles = _watch(parts, _stop)
    try:
        backward(parts[0], micros)
    except _Found as found:
        return found.where
    finally:
        _forget(parts, handles)
    return "the sum over all parameters, each of which is finite"


def _stop(where: str) -> None:
    raise _Found(where)


def _watch(parts: list[nn.Module], tell: Callable[[str], None]) -> list[Any]:
    """Hooks that tell of every output and gradient that is not finite."""
    handles: list[Any] = []
    for part in parts:
        for name, module in part.named_modules():
            where = f"output of {name}" if name else "the loss"
            handles.append(module.register_forward_hook(_watch_output(where, tell)))
        for name, parameter in part.named_parameters():
            if parameter.requires_grad:
                handles.append(parameter.register_post_accumulate_grad_hook(_watch_gradient(name, tell)))
    return handles


def _forget(parts: list[nn.Module], handles: list[Any]) -> None:
    for handle in handles:
        handle.remove()
    for part in parts:
        part.zero_grad(set_to_none=True)


def _watch_output(where: str, tell: Callable[[str], None]) -> Callable[[nn.Module, Any, Any], None]:
    def hook(module: nn.Module, inputs: Any, output: Any) -> None:
        if isinstance(output, Tensor) and not _finite(output):
            tell(where)

    return hook


def _watch_gradient(name: str, tell: Callable[[str], None]) -> Callable[[Tensor], None]:
    def hook(parameter: Tensor) -> None:
        if parameter.grad is not None and not _finite(parameter.grad):
            tell(f"{GRADIENT}{name}")

    return hook


def _finite(tensor: Tensor) -> bool:
    return bool(torch.isfinite(local(tensor)).all())
