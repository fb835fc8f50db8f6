"""Importance of what can be taken out of a model: channels and key-value groups of a layer, and whole layers.

A channel is a row of gate and up and the column of down that reads it; a group is a key-value head, the query heads that read
it, and their columns of o. What a column reads is x.

    norm          sum of w^2 over all of the part's weights, biases left out
    activation    mean over real tokens of |x|, summed over a group's elements; of a layer: 1 - the cosine between what enters
                  and what leaves it (Men et al. 2024, "ShortGPT", arXiv 2403.03853, section 2.3)
    first-order   (sum of w dL/dw over the columns that read it)^2, the mean over batches: the change of the loss L, to first
                  order, when the part gives 0 (Molchanov et al. 2019, arXiv 1906.10771, section 3.3, with the gate behind
                  the part); of a layer: when neither of its two sums adds anything

Legend: L layers, K groups, C channels of a layer, B rows, S tokens, D size of a head.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from burnish.compress.samples import Samples
from burnish.errors import UserError
from burnish.models.decoder import Decoder
from burnish.ops.cross_entropy import IGNORED, chunked_cross_entropy

READERS = ("attention.o", "mlp.down")  # the matrices that read groups and channels
ATTENTION = ("attention.q", "attention.k", "attention.v", "attention.o")
FEED_FORWARD = ("mlp.gate", "mlp.up", "mlp.down")


@dataclass(frozen=True)
class Importance:
    """`layers` [L], `groups` [L, K], `channels` [L, C], 0 wide for experts; float64, none below 0, in one unit a part."""

    layers: Tensor
    groups: Tensor
    channels: Tensor


def importance(kind: str, model: Any, samples: Samples | None, rows: int) -> Importance:
    """That of `kind` norm, activation or first-order; the latter two read the samples, `rows` rows at a time.

    Raises UserError where there are no samples and `kind` needs them, and naming what is not finite.
    """
    if kind == "norm":
        found = by_norm(model)
    elif samples is None:
        raise UserError(f"techniques.prune.importance {kind} reads samples of text; give some, or use importance norm")
    elif kind == "first-order" and not isinstance(model, Decoder):
        raise UserError(
            "techniques.prune.importance first-order: an encoder predicts no next token; use activation or norm"
        )
    else:
        found = (by_activation if kind == "activation" else by_first_order)(model, samples, rows)
    for name in ("layers", "groups", "channels"):
        if not torch.isfinite(getattr(found, name)).all():
            raise UserError(f"techniques.prune: the importance of {name} by {kind} is not finite; are all weights?")
    return found


@torch.no_grad()
def by_norm(model: Any) -> Importance:
    """Sums of squared weights."""
    layers, groups, channels = [], [], []
    for block in model.layers:
        groups.append(_squares(block, ATTENTION, groups_of(block)))
        if has_channels(block):
            channels.append(_squares(block, FEED_FORWARD, channels_of(block)))
        whole = sum(p.double().square().sum() for p in block.parameters() if p.dim() > 1)
        layers.append(torch.as_tensor(whole, dtype=torch.float64).cpu())
    return _stacked(layers, groups, channels)


def _squares(block: Any, names: tuple[str, ...], count: int) -> Tensor:
    """Sums of squares of `count` parts: of runs of columns of the last of the matrices, and of rows of the others."""
    total = torch.zeros(count, dtype=torch.float64)
    for name in names:
        if (module := getattr(block.get_submodule(name.split(".")[0]), name.split(".")[1], None)) is not None:
            along = module.weight.double().square().sum(0 if name in READERS else 1)
            total += along.unflatten(0, (count, -1)).sum(1).cpu()
    return total


@torch.no_grad()
def by_activation(model: Any, samples: Samples, rows: int) -> Importance:
    """Means over the real tokens of all samples."""
    sums = [[torch.zeros((), dtype=torch.float64) for _ in range(3)] for _ in model.layers]

    def read(layer: int, place: int, value: Tensor) -> None:
        sums[layer][place] = sums[layer][place] + value

    device = model.embed.weight.device
    for ids, mask in samples.batches(rows):
        real = mask.to(device)
        with _watching(model, real, read):
            model(ids.to(device), mask_BS=real)
    count = samples.tokens
    wide = [has_channels(block) for block in model.layers]
    groups = [own[1].unflatten(0, (groups_of(b), -1)).sum(1) for own, b in zip(sums, model.layers, strict=True)]
    channels = [own[2] for own, there in zip(sums, wide, strict=True) if there]
    return _stacked(*([tensor / count for tensor in part] for part in ([own[0] for own in sums], groups, channels)))


@contextmanager
def _watching(model: Any, mask: Tensor, read: Callable[[int, int, Tensor], None]) -> Iterator[None]:
    """Tell of each layer, over the real tokens: 0 the sum of 1 - cosine, 1 and 2 those of |x| that o and down read."""
    hooks = []

    def through(layer: int) -> Callable[..., None]:
        def told(_: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
            entered, left = (x[mask].double() for x in (inputs[0], output))
            read(layer, 0, (1 - torch.cosine_similarity(entered, left, dim=-1)).sum().cpu())

        return told

    def into(layer: int, place: int) -> Callable[..., None]:
        def told(_: nn.Module, inputs: tuple[Any, ...]) -> None:
            read(layer, place, inputs[0][mask].abs().double().sum(0).cpu())

        return told

    try:
        for number, block in enumerate(model.layers):
            hooks.append(block.register_forward_hook(through(number)))
            hooks.append(block.get_submodule(READERS[0]).register_forward_pre_hook(into(number, 1)))
            if has_channels(block):
                hooks.append(block.get_submodule(READERS[1]).register_forward_pre_hook(into(number, 2)))
        yield
    finally:
        for hook in hooks:
            hook.remove()


def by_first_order(model: Decoder, samples: Samples, rows: int) -> Importance:
    """Squares of w dL/dw, summed over what a part's readers hold; L is the mean over a batch's labels, the next tokens."""
    learned = [parameter for block in model.layers for name in READERS for parameter in _own(block, name)]
    device = model.embed.weight.device
    sums: list[Tensor] = []
    batches = 0
    with _learning(model, learned), torch.enable_grad():
        for ids, mask in samples.batches(rows):
            ids, mask = ids.to(device), mask.to(device)
            labels = _next(ids, mask)
            if not (counted := int((labels != IGNORED).sum())):
                continue
            hidden = model(ids, mask_BS=mask).flatten(0, 1)
            loss = chunked_cross_entropy(hidden, model.head.weight, labels.flatten()) / counted
            gradients = torch.autograd.grad(loss, learned)
            products = [(p.detach() * g).double() for p, g in zip(learned, gradients, strict=True)]
            squares = [*_batch_squares(model, products)]
            sums = [a + b for a, b in zip(sums, squares, strict=True)] if sums else squares
            batches += 1
    if not batches:
        raise UserError("techniques.prune: no sample has two tokens, so there is no next one to learn from")
    means = [total / batches for total in sums]
    return Importance(means[0], means[1], means[2])


def _batch_squares(model: Decoder, products: list[Tensor]) -> Iterator[Tensor]:
    """Of one batch's w dL/dw of all readers: the squares of layers [L], groups [L, K] and channels [L, C]."""
    waiting = iter(products)
    layers, groups, channels = [], [], []
    for block in model.layers:
        total = torch.zeros((), dtype=torch.float64)
        for name in READERS:
            columns, *bias = (next(waiting).cpu() for _ in _own(block, name))
            total = total + columns.sum() + sum(vector.sum() for vector in bias)
            if name == READERS[0]:
                groups.append(columns.sum(0).unflatten(0, (groups_of(block), -1)).sum(1).square())
            elif has_channels(block):
                channels.append(columns.sum(0).square())
        layers.append(total.square())
    found = _stacked(layers, groups, channels)
    yield from (found.layers, found.groups, found.channels)


def _own(block: Any, name: str) -> list[nn.Parameter]:
    """A reader's matrix, and its bias if it has one."""
    return list(block.get_submodule(name).parameters())


@contextmanager
def _learning(model: Decoder, learned: list[nn.Parameter]) -> Iterator[None]:
    """Only the readers' weights get gradients; afterwards all is as it was."""
    before = {parameter: parameter.requires_grad for parameter in model.parameters()}
    try:
        for parameter in before:
            parameter.requires_grad_(False)
        for parameter in learned:
            parameter.requires_grad_(True)
        yield
    finally:
        for parameter, flag in before.items():
            parameter.requires_grad_(flag)


def _next(ids_BS: Tensor, mask_BS: Tensor) -> Tensor:
    """The real token after each real one; nothing counts where either is padding."""
    labels = torch.full_like(ids_BS, IGNORED)
    both = mask_BS[:, :-1] & mask_BS[:, 1:]
    labels[:, :-1][both] = ids_BS[:, 1:][both]
    return labels


def groups_of(block: Any) -> int:
    """Key-value groups of a layer."""
    return int(block.attention.k.out_features) // int(block.attention.head_dim)


def channels_of(block: Any) -> int:
    """Feed-forward channels of a layer."""
    return int(block.mlp.down.in_features)


def has_channels(block: Any) -> bool:
    """Whether its feed-forward part is dense; experts are not cut."""
    return not hasattr(block.mlp, "router")


def _stacked(layers: list[Tensor], groups: list[Tensor], channels: list[Tensor]) -> Importance:
    none = torch.zeros(len(layers), 0, dtype=torch.float64)
    return Importance(torch.stack(layers), torch.stack(groups), torch.stack(channels) if channels else none)
