"""Where a step stopped being finite: the first module or parameter to blame, found by one watched pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from burnish.data.batch import Batch
from burnish.train.step import backward


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


def first_bad(parts: list[nn.Module], micros: list[Batch]) -> str:
    """What first stops being finite in a forward and backward pass over `micros`, innermost module first.

    In this order: a parameter, a module's output, the loss, a parameter's gradient (from the last layer backwards).
    The gradients this pass makes are dropped.
    """
    if bad := first_bad_parameter(parts):
        return bad
    handles: list[Any] = []
    for part in parts:
        for name, module in part.named_modules():
            handles.append(module.register_forward_hook(_watch_output(f"output of {name}" if name else "the loss")))
        for name, parameter in part.named_parameters():
            if parameter.requires_grad:
                handles.append(parameter.register_post_accumulate_grad_hook(_watch_gradient(name)))
    try:
        backward(parts[0], micros)
    except _Found as found:
        return found.where
    finally:
        for handle in handles:
            handle.remove()
        for part in parts:
            part.zero_grad(set_to_none=True)
    return "the sum over all parameters, each of which is finite"


def _watch_output(where: str) -> Callable[[nn.Module, Any, Any], None]:
    def hook(module: nn.Module, inputs: Any, output: Any) -> None:
        if isinstance(output, Tensor) and not _finite(output):
            raise _Found(where)

    return hook


def _watch_gradient(name: str) -> Callable[[Tensor], None]:
    def hook(parameter: Tensor) -> None:
        if parameter.grad is not None and not _finite(parameter.grad):
            raise _Found(f"gradient of {name}")

    return hook


def _finite(tensor: Tensor) -> bool:
    return bool(torch.isfinite(tensor).all())
