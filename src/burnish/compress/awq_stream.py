"""Samples through a decoder one layer after another: the states of all rows wait between layers, padding left out.

Shape letters: B rows of a batch, S positions, H hidden size, T real tokens of a batch, I inputs of a matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from burnish.compress.samples import Samples
from burnish.models.decoder import Decoder
from burnish.models.experts import Experts
from burnish.models.rotary import rotary_angles
from burnish.models.view import view

ROWS = 2  # of a batch
Watch = Callable[[str, int, Tensor], None]  # matrix, expert, what it reads [T, I]


class Passing(NamedTuple):
    """One batch between two layers: real tokens' states [T, H], where they stand [B, S], and the ids."""

    states: Tensor
    mask: Tensor
    ids: Tensor


@torch.no_grad()
def enter(model: Decoder, samples: Samples, rows: int = ROWS) -> list[Passing]:
    """What the first layer reads, batch by batch."""
    found = []
    for ids, mask in samples.batches(rows):
        x_BSH = model.embed(ids)
        if model.positions is not None:
            x_BSH = x_BSH + model.positions(view(ids, None, mask, None, 0, x_BSH.dtype).positions)
        found.append(Passing(x_BSH[mask], mask, ids))
    return found


@torch.no_grad()
def through(model: Decoder, number: int, block: Any, batch: Passing) -> Tensor:
    """The states of a batch behind `block`, which stands as layer `number`: [T, H]."""
    shape = model.shape
    states = batch.states
    x_BSH = states.new_zeros(*batch.mask.shape, states.shape[-1])
    x_BSH[batch.mask] = states
    seen = view(batch.ids, None, batch.mask, None, shape.window, x_BSH.dtype)
    rotary = None
    if model.positions is None:
        rotary = rotary_angles(seen.positions, shape.head_dim, shape.rope_theta, x_BSH.dtype, shape.rope_scaling)
    near = shape.window and number >= shape.window_from
    mixed = block.attention(block.attention_norm(x_BSH), rotary, seen.near if near else seen.whole, None, 0)
    # The feed-forward part looks at one position at a time, so that padding need not pass it: no expert sees any.
    x_TH = states + mixed[batch.mask]
    return x_TH + block.mlp(block.mlp_norm(x_TH))


@contextmanager
def watching(block: nn.Module, names: tuple[str, ...], batch: Callable[[], Tensor], watch: Watch) -> Iterator[None]:
    """Give `watch` what the matrices `names` of a layer read; `batch` gives the mask of the batch that passes."""
    handles = []
    for name in names:
        module = block.get_submodule(name)
        routed = name.startswith("mlp.") and isinstance(block.get_submodule("mlp"), Experts)

        def tell(_: nn.Module, given: tuple[Any, ...], name: str = name, routed: bool = routed) -> None:
            if routed and len(given) == 2:
                for expert, rows in enumerate(given[0].split(given[1])):
                    watch(name, expert, rows)
            else:
                watch(name, 0, given[0][batch()] if given[0].dim() == 3 else given[0])

        handles.append(module.register_forward_pre_hook(tell))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def readers(model: Decoder, number: int, block: Any, source: str, batch: Passing) -> set[str]:
    """The modules with a matrix whose every input row is a row that `source` gave: found by running, not from a list."""
    given: list[Tensor] = []
    taken: dict[str, list[Tensor]] = {}

    def give(_: nn.Module, __: Any, out: Tensor) -> None:
        given.append(out.flatten(0, -2))

    names = [name.removesuffix(".weight") for name, weight in block.named_parameters() if weight.dim() == 2]
    handle = block.get_submodule(source).register_forward_hook(give)
    try:
        with watching(block, tuple(names), lambda: batch.mask, lambda n, _, x: taken.setdefault(n, []).append(x)):
            through(model, number, block, batch)
    finally:
        handle.remove()
    known = {row.numpy().tobytes() for row in torch.cat(given)}
    return {name for name, rows in taken.items() if all(row.numpy().tobytes() in known for row in torch.cat(rows))}
