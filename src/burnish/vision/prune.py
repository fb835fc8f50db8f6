"""Prune: choose the channels that a convolutional network that is not ours keeps, for a target.

Idea: of every group of channels that must leave together, those whose weights are smallest leave, the same share of every group.
Target: a share of the channels, or of FLOPs, bytes or latency, for which the least share of channels that reaches it is sought.
Source: Li et al. 2017, arXiv 1608.08710, section 3.1 (magnitude of filters); Molchanov et al. 2019, arXiv 1906.10771, eq. 8
(Taylor); sums over a group: Fang et al. 2023, arXiv 2301.12900, section 3.3.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from math import lcm
from statistics import median
from typing import Literal

import torch
from torch import Tensor, nn

from burnish.errors import UserError
from burnish.units import show
from burnish.vision.channels import Group, groups
from burnish.vision.kept_channels import Kept, apply
from burnish.vision.operators import Sizes
from burnish.vision.plan import forward_flops

STEPS = 64  # shares of channels that are tried for a measured target: of these many equal steps
RUNS = 7  # that a latency is the median of
UNITS = {"flops": "FLOPs", "bytes": "bytes", "latency": "s"}
Importance = Mapping[str, Tensor]  # parameter -> importance of each element


@dataclass(frozen=True)
class Target:
    """`share` of channels, or of FLOPs, bytes or seconds of one forward, that goes; channels stay in multiples of `round_to`."""

    share: float
    kind: Literal["ratio", "flops", "bytes", "latency"] = "ratio"
    round_to: int = 4

    def __post_init__(self) -> None:
        if not 0 < self.share < 1:
            raise UserError(f"prune: a target of {self.share:g}; give a share above 0 and below 1, such as 0.5")
        if self.round_to < 1:
            raise UserError(f"prune: round_to is {self.round_to}; give 1 or more")


def magnitude(model: nn.Module) -> Importance:
    """The square of every weight."""
    return {name: p.detach().square() for name, p in model.named_parameters()}


def taylor(model: nn.Module, losses: Iterable[Callable[[nn.Module], Tensor]]) -> Importance:
    """(weight * gradient)^2, summed over losses of batches: how far each loss moves when the weight is set to 0."""
    found = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    for loss in losses:
        named = dict(model.named_parameters())
        grads = torch.autograd.grad(loss(model), list(named.values()), allow_unused=True)
        for (name, p), grad in zip(named.items(), grads, strict=True):
            if grad is not None:
                found[name] += (p.detach() * grad).square()
    return found


def choose(model: nn.Module, sizes: Sizes, target: Target, importance: Importance | None = None) -> Kept:
    """The channels to keep of a model that reads images of `sizes` [B, C, *spatial]; the model stays as it is.

    Raises UserError where no channel may leave, with the reasons, and for a target that cannot be reached, with what can.
    """
    found = groups(model, sizes)
    if not found.groups:
        reasons = "; ".join(f"{name}: {why}" for name, why in list(found.kept.items())[:3])
        raise UserError(f"{type(model).__name__}: no channels can be pruned ({reasons or 'no convolutions'})")
    scores = [_scores(group, importance or magnitude(model)) for group in found.groups]

    def table(ratio: float) -> Kept:
        return _table(
            model, found.groups, [_keep(g, s, ratio, target) for g, s in zip(found.groups, scores, strict=True)]
        )

    if target.kind == "ratio":
        kept = table(target.share)
        return replace(kept, reached=f"{target.share:.0%} of channels asked for, {_gone(kept):.0%} gone")
    return _search(model, sizes, target, table)


def _search(model: nn.Module, sizes: Sizes, target: Target, table: Callable[[float], Kept]) -> Kept:
    """The least share of channels, in `STEPS`, that takes enough away."""

    def cost(kept: Kept | None) -> float:
        cut = copy.deepcopy(model) if kept is None else apply(copy.deepcopy(model), kept)
        return _cost(cut, sizes, target.kind)

    before = cost(None)
    wanted, unit = before * (1 - target.share), UNITS[target.kind]
    low, high = 0, STEPS - 1
    if (least := cost(table(high / STEPS))) > wanted:
        raise UserError(
            f"prune: {target.kind} of {show(wanted, unit)} cannot be reached, {show(least, unit)} can; "
            f"give a share of at most {max(1 - least / before, 0):.2f}"
        )
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if cost(table(middle / STEPS)) <= wanted else (middle, high)
    kept = table(high / STEPS)
    return replace(kept, reached=f"{target.kind} {show(before, unit)} -> {show(cost(kept), unit)}")


def _cost(model: nn.Module, sizes: Sizes, kind: str) -> float:
    if kind == "bytes":
        return float(sum(t.nbytes for t in (*model.parameters(), *model.buffers())))
    if kind == "flops":
        return forward_flops(model.to("meta"), sizes)
    model.eval()
    device = next(model.parameters()).device
    images, seconds = torch.zeros(sizes, device=device), []
    with torch.no_grad():
        for _ in range(RUNS + 1):
            began = time.perf_counter()
            model(images)
            if device.type == "cuda":
                torch.cuda.synchronize()
            seconds.append(time.perf_counter() - began)
    return median(seconds[1:])


def _scores(group: Group, importance: Importance) -> Tensor:
    """Importance of each channel: of each parameter it hangs on the mean over elements, relative to the group's; summed."""
    total = torch.zeros(group.width, dtype=torch.float64)
    for place, (name, dim, _) in enumerate(group.slots[0]):
        if name not in importance:
            continue  # a buffer
        own = importance[name].double()
        each = own.mean(dim=[d for d in range(own.dim()) if d != dim]).cpu() if own.dim() > 1 else own.cpu()
        chosen = each[[slots[place][2] for slots in group.slots]]
        total += chosen / chosen.mean().clamp(min=1e-30)
    return total


def _keep(group: Group, scores: Tensor, ratio: float, target: Target) -> tuple[int, ...]:
    """The channels of a group that stay: as many in each of its blocks."""
    size = group.width // group.blocks
    step = lcm(target.round_to, group.blocks) // group.blocks
    count = max(round(size * (1 - ratio) / step), 1) * step
    if count >= size:
        return tuple(range(group.width))
    best = scores.view(group.blocks, size).argsort(dim=1, descending=True, stable=True)[:, :count]
    return tuple(sorted((best + torch.arange(group.blocks)[:, None] * size).flatten().tolist()))


def _table(model: nn.Module, found: Iterable[Group], keeps: Iterable[tuple[int, ...]]) -> Kept:
    held = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    gone: dict[tuple[str, int], set[int]] = {}
    layers = {}
    for group, keep in zip(found, keeps, strict=True):
        layers[group.name] = (group.width, keep)
        staying = set(keep)
        for channel in range(group.width):
            for name, dim, index in group.slots[channel]:
                leaving = gone.setdefault((name, dim), set())
                if channel not in staying:
                    leaving.add(index)
    tensors: dict[str, dict[int, tuple[int, tuple[int, ...]]]] = {}
    for (name, dim), leaving in gone.items():
        size = held[name].shape[dim]
        if leaving:
            tensors.setdefault(name, {})[dim] = (size, tuple(i for i in range(size) if i not in leaving))
    return Kept(layers, tensors)


def _gone(kept: Kept) -> float:
    had, has = (sum(one) for one in zip(*((width, len(left)) for width, left in kept.layers.values()), strict=True))
    return 1 - has / had
