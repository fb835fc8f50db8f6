"""Operators: a network that is not ours as the list of ATen operators it runs, with sizes; found without running it.

torch.export writes the list (PyTorch 2, Ansel et al. 2024): parameters by their names in the model, no Python of the model left.
What reads the list needs no torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn

from burnish.errors import UserError

Sizes = tuple[int, ...]


@dataclass(frozen=True)
class Ref:
    """The value of this name: what an operator gave, a parameter, or an input of the network."""

    name: str


@dataclass(frozen=True)
class Operator:
    """One call: `kind` is the operator without overload or the underscore of those that work in place."""

    name: str
    kind: str
    args: tuple[Any, ...]  # Ref where a value is read
    sizes: Sizes
    in_place: bool = False

    def reads(self) -> Iterator[str]:
        """Names of the values it reads, those in lists too."""
        for given in self.args:
            for one in given if isinstance(given, tuple) else (given,):
                if isinstance(one, Ref):
                    yield one.name

    def arg(self, index: int, default: Any = None) -> Any:
        """An argument, or what the operator takes where it is left out."""
        return self.args[index] if index < len(self.args) and self.args[index] is not None else default


@dataclass(frozen=True)
class Network:
    """A network's operators in the order they run. `tensors`: value -> name of a parameter or buffer; `sizes` of all of those."""

    operators: tuple[Operator, ...]
    tensors: dict[str, str]
    sizes: dict[str, Sizes]
    inputs: dict[str, Sizes]
    outputs: tuple[str, ...]
    parameters: int = 0  # elements


def operators_of(model: nn.Module, sizes: Sizes) -> Network:
    """The operators that a model runs, in evaluation, on images of `sizes` [B, C, *spatial]. Nothing of it changes.

    Raises UserError for a model whose Python cannot be followed.
    """
    import torch

    was = model.training
    model.eval()
    kept = next(model.parameters())
    try:
        made = torch.export.export(model, (torch.zeros(sizes, device=kept.device, dtype=kept.dtype),), strict=False)
    except Exception as error:  # of many kinds, none of them public
        said = " ".join(str(error).split())[:160]
        raise UserError(f"{type(model).__name__}: torch.export cannot follow it at {list(sizes)} ({said})") from None
    finally:
        model.train(was)
    return _read(made, sum(p.numel() for p in model.parameters()))


def _read(made: Any, parameters: int) -> Network:
    signature = made.graph_signature
    tensors = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    found: list[Operator] = []
    own: dict[str, Sizes] = {}
    inputs: dict[str, Sizes] = {}
    outputs: tuple[str, ...] = ()
    for node in made.graph.nodes:
        if node.op == "placeholder":
            (own if node.name in tensors else inputs)[node.name] = _sizes(node)
        elif node.op == "call_function":
            kind = getattr(getattr(node.target, "_schema", None), "name", str(node.target)).removeprefix("aten::")
            args = tuple(_plain(given) for given in (*node.args, *node.kwargs.values()))
            found.append(Operator(node.name, kind.removesuffix("_"), args, _sizes(node), kind.endswith("_")))
        elif node.op == "output":
            outputs = tuple(one.name for one in node.args[0] if hasattr(one, "name"))
    return Network(
        tuple(found), tensors, {tensors[name]: size for name, size in own.items()}, inputs, outputs, parameters
    )


def _sizes(node: Any) -> Sizes:
    value = node.meta.get("val")
    return tuple(int(size) for size in value.shape) if hasattr(value, "shape") else ()


def _plain(given: Any) -> Any:
    """An argument as plain data."""
    if hasattr(given, "op") and hasattr(given, "users"):
        return Ref(given.name)
    return tuple(_plain(one) for one in given) if isinstance(given, list | tuple) else given
