"""From a layer on: models that differ from one only there run without the layers before it, whose states are kept.

The inputs are fixed and come in one order, so that the n-th call of a run reads what the n-th call of another did. Layers before
the first that differs give the same states bit for bit, which are kept for one layer at a time.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from burnish.compress.costs import held_bytes

SMALL = 2**24  # bytes of states that are kept however small a layer is
Forward = Callable[..., Tensor]


class FromLayer:
    """What `own` gives before one layer after another; `run` runs a model over the fixed inputs."""

    def __init__(self, own: nn.Module, run: Callable[[nn.Module], object]) -> None:
        self._own, self._run = own, run
        self._at, self._states = 0, list[Tensor]()
        self._most = max([SMALL, *(held_bytes(layer) for layer in own.get_submodule("layers").children())])

    def shortened(self, model: nn.Module, number: int) -> nn.Module:
        """`model`, whose layers before `number` are those of `own`, as one that goes on from there.

        Whole where the states would take more than a layer does. Asked for one layer after another, it runs each of `own` once.
        """
        if number > self._at and self._most:
            self._go_on(number)
        return _replaced(model, self._skipped()) if self._at == number and self._states else model

    def _skipped(self) -> dict[int, Forward]:
        """Layers that give what is kept: the first of them all of it, the others what they read."""
        states: Iterator[Tensor] = iter(self._states)
        passed: dict[int, Forward] = dict.fromkeys(range(self._at), _pass)
        return passed | {0: lambda x, *_: next(states)} if self._at else {}

    def _go_on(self, number: int) -> None:
        kept: list[Tensor] = []

        def keep(x: Tensor, *_: Any) -> Tensor:
            if sum(state.nbytes for state in kept) <= self._most:
                kept.append(x)
            return x

        count = len(list(self._own.get_submodule("layers").children()))
        behind: dict[int, Forward] = dict.fromkeys(range(number + 1, count), _pass)
        self._run(_replaced(self._own, self._skipped() | {number: keep} | behind))
        if sum(state.nbytes for state in kept) > self._most:
            self._most, kept = 0, []
        self._at, self._states = number, kept


def _pass(x: Tensor, *_: Any) -> Tensor:
    return x


def tree(module: nn.Module) -> nn.Module:
    """The same modules in a tree of its own, whose branches can be exchanged; tensors are shared."""
    made = copy.copy(module)
    made.__dict__ = dict(module.__dict__)
    made._modules = {name: child if child is None else tree(child) for name, child in module._modules.items()}
    return made


def _replaced(model: nn.Module, forwards: Mapping[int, Forward]) -> nn.Module:
    """`model` in a tree of its own, some of whose layers do something else."""
    made = tree(model)
    for number, forward in forwards.items():
        made.get_submodule(f"layers.{number}").forward = forward  # type: ignore[method-assign]
    return made
