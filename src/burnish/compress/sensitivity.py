"""Sensitivity: which parts of a model suffer when they are compressed, and the fewest to keep as they were.

A part is what can be exchanged for its counterpart without the rest noticing: of a decoder's layer the attention with the
norm before it, and the feed-forward with its own, because whatever compression moves between neighbouring tensors it moves
within these. What lies outside of such parts and was changed (embedding, head) is a part of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from burnish.compress.divergence import Probe
from burnish.compress.from_layer import FromLayer, tree

HALVES = (("attention", ("attention_norm", "attention")), ("mlp", ("mlp_norm", "mlp")))


@dataclass(frozen=True)
class Exchange:
    """A part by its name, and the modules that are exchanged together."""

    name: str
    modules: tuple[str, ...]

    @property
    def layer(self) -> int | None:
        """The number of the layer it lies in; None outside of layers."""
        first, number, *_ = [*self.modules[0].split("."), ""]
        return int(number) if first == "layers" else None


def parts_of(own: nn.Module, compressed: nn.Module) -> list[Exchange]:
    """The parts in which two models of one architecture differ, in the order of the model.

    A layer whose norms stand behind the sums is divided only where its norms did not change.
    """
    changed = changed_modules(own, compressed)
    found = []
    for k, layer in enumerate(own.get_submodule("layers").children()):
        place = f"layers.{k}"
        before = {name for name, _ in layer.named_children()}
        halves = [
            Exchange(f"{place}.{name}", tuple(f"{place}.{m}" for m in own if m in before)) for name, own in HALVES
        ]
        norms = {f"{place}.attention_norm", f"{place}.mlp_norm"}
        if norms_behind(layer) and norms & changed:
            halves = [Exchange(place, (place,))]
        found += [half for half in halves if any(_within(name, half.modules) for name in changed)]
    inside = [module for half in found for module in half.modules]
    ends = sorted(
        {name.split(".")[0] for name in changed if not _within(name, inside) and name.split(".")[0] != "layers"}
    )
    return found + [Exchange(name, (name,)) for name in ends]


def norms_behind(layer: nn.Module) -> bool:
    """Whether a layer's norms stand behind its sums (Devlin et al. 2019), not before its matrices."""
    order = [name for name, _ in layer.named_children()]
    return order.index("attention") < order.index("attention_norm")


def _within(name: str, modules: Sequence[str]) -> bool:
    return any(name == module or name.startswith(f"{module}.") for module in modules)


def changed_modules(own: nn.Module, compressed: nn.Module) -> set[str]:
    """The modules that are of another class, or hold a tensor that differs."""
    changed = set()
    before = dict(own.named_modules())
    for name, module in compressed.named_modules():
        there = before.get(name)
        if type(module) is not type(there) or any(map(_differ, _held(module), _held(there))):
            changed.add(name)
    return changed - {""}


def _held(module: nn.Module | None) -> list[Tensor]:
    return [] if module is None else [*module.parameters(recurse=False), *module.buffers(recurse=False)]


def _differ(one: Tensor, other: Tensor) -> bool:
    return one.data_ptr() != other.data_ptr() and (one.shape != other.shape or not torch.equal(one, other))


def mixed(base: nn.Module, other: nn.Module, exchanged: Sequence[Exchange]) -> nn.Module:
    """`base` with some parts of `other`; both stay as they are and share their tensors with the result."""
    made = tree(base)
    for part in exchanged:
        for name in part.modules:
            where, _, last = name.rpartition(".")
            setattr(made.get_submodule(where), last, other.get_submodule(name))
    return made.eval()


def alone(
    own: nn.Module,
    compressed: nn.Module,
    parts: Sequence[Exchange],
    probe: Probe,
    progress: Callable[[int, int], None] | None = None,
) -> list[float]:
    """How far the output moves when one part after another is the only one that is compressed.

    Each runs from the layer on that it changes, as the layers before it are `own`'s.
    """
    found, walk = [], FromLayer(own, probe.run)
    for done, part in enumerate(parts, 1):
        changed = mixed(own, compressed, [part])
        found.append(probe.seen(walk.shortened(changed, part.layer or 0)).divergence)
        if progress:
            progress(done, len(parts))
    return found


def fewest(
    parts: Sequence[Exchange],
    harm: Sequence[float],
    meets: Callable[[Sequence[Exchange]], bool],
    tries: int = 16,
) -> list[Exchange] | None:
    """The fewest parts to keep so that `meets` says yes; None when keeping all of them is not enough.

    The most harmful first: how many are enough is found by halving. Then each of them, the least harmful first, is given back
    if the rest is enough without it, in at most `tries` tries. The order of the model is kept.
    """
    order = sorted(range(len(parts)), key=lambda k: -harm[k] if math.isfinite(harm[k]) else -math.inf)

    def enough(kept: Sequence[int]) -> bool:
        return meets([parts[k] for k in sorted(kept)])

    low, high = 0, len(order)
    if not enough(order):
        return None
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(order[:middle]) else (middle + 1, high)
    kept = order[:high]
    for k in list(reversed(kept[:-1]))[:tries]:  # without the last one the others were not enough
        if enough(rest := [one for one in kept if one != k]):
            kept = rest
    return [parts[k] for k in sorted(kept)]
