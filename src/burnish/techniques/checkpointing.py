"""Gradient checkpointing: keep little of a layer's forward, run the rest again in backward.

Idea    Chen et al. 2016, "Training deep nets with sublinear memory cost" (arXiv 1604.06174): keep a layer's input only.
        Korthikanti et al. 2022, "Reducing activation recomputation" (arXiv 2205.05198), section 5: choose by operation.
Price   full, every: a second forward of the layer; its last matrix product is not run again, because nothing in its
        backward needs the result (torch stops the second forward early), unless it is one over experts or a norm
        stands behind it. selective: norms, activations and rotary again, no matrix product but one over experts.
Gain    full, every: only the layer's input stays. selective: the inputs of matrix products go, their outputs stay.
Limits  the layer's own peak comes back while its backward runs; the loss head is never checkpointed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from fnmatch import fnmatchcase
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import Field, field_validator, model_validator

from burnish.errors import BudgetNotMet, UserError
from burnish.mesh import Mesh, N, pick
from burnish.section import Section
from burnish.units import show
from burnish.work import ACTIVATION, RECOMPUTE, Block, Op, Saved, Work, saved_bytes

if TYPE_CHECKING:
    from torch import nn

    from burnish.train.step import Trainable

UNITS = {"": 1, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
PRODUCTS = ("matmul", "router", "experts")  # operations that are matrix products
ADAPTER = "adapter"  # narrow products beside a matrix: cheaper to make again than to keep
RETURNED = ("output", "log-sum-exp")  # what attention gives back, of all that it saves


class Config(Section):
    """`mode`: none; full (every layer); every (each `every`-th layer, counted from the first); selective; budget.

    `budget` bounds the bytes saved for one micro batch ("300 MiB" or a number): the mode that recomputes least is taken.
    `blocks` names the layers in the module tree, one pattern a dotted part.
    """

    mode: Literal["none", "full", "every", "selective", "budget"] = "none"
    every: int = Field(default=1, ge=1)
    budget: int = Field(default=0, ge=0)
    blocks: str = "model.layers.*"

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        return {"mode": value} if isinstance(value, str) else value

    @field_validator("budget", mode="before")
    @classmethod
    def _bytes(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        found = re.fullmatch(r"(\d+(?:\.\d+)?) *([KMG]iB|B|)", value.strip())
        if found is None:
            raise ValueError("a size is a number of bytes or one with B, KiB, MiB or GiB")
        return int(float(found[1]) * UNITS[found[2]])

    @model_validator(mode="after")
    def _whole(self) -> Config:
        if (self.mode == "budget") != bool(self.budget):
            raise ValueError('mode budget and a budget above 0 go together, such as {mode: budget, budget: "2 GiB"}')
        return self

    def __str__(self) -> str:
        return f"every {self.every}" if self.mode == "every" else self.mode


def layers_of(config: Config, layers: int) -> list[int]:
    """Indices of the layers that keep less."""
    if config.mode == "none":
        return []
    return list(range(0, layers, config.every if config.mode == "every" else 1))


def check(config: Config, work: Work, mesh: Mesh) -> None:
    """Raises UserError when no layer would be checkpointed although the mode asks for it, BudgetNotMet when no mode meets the
    budget."""
    layers = _layers(work)
    if config.mode == "every" and config.every > layers:
        raise UserError(f"memory.checkpointing.every is {config.every}; the model has {layers} layers, use 1..{layers}")
    if config.mode == "budget":
        least = min(int(np.min(saved_bytes(predict(choice, work, mesh)))) for choice in choices(config, work))
        if config.budget < least:
            raise BudgetNotMet(
                f"memory.checkpointing.budget is {show(config.budget, 'bytes')}; the least that can be saved is "
                f"{show(least, 'bytes')} ({least:,} bytes): give that much, or lower train.micro_batch or data.seq"
            )


def choices(config: Config, work: Work) -> Iterator[Config]:
    """What a budget may be met with, from nothing recomputed to everything."""
    for mode in ("none", "selective"):
        yield config.model_copy(update={"mode": mode, "budget": 0})
    for every in range(_layers(work), 1, -1):
        yield config.model_copy(update={"mode": "every", "every": every, "budget": 0})
    yield config.model_copy(update={"mode": "full", "budget": 0})


def settle(config: Config, work: Work, mesh: Mesh) -> Config:
    """The settings with a budget replaced by the first choice that meets it (one mapping; see `check` for none)."""
    if config.mode != "budget":
        return config
    return next(c for c in choices(config, work) if saved_bytes(predict(c, work, mesh)) <= config.budget)


def predict(config: Config, work: Work, mesh: Mesh, table: Any = None) -> Work:
    """The work with checkpointed layers keeping less and running the rest of their forward again.

    Under a budget each candidate mapping takes its own choice; one that no choice fits takes the last.
    """
    if config.mode == "none":
        return work
    blocks: list[Block] = []
    for block in work.blocks:
        if block.entering is None:
            blocks.append(block)
            continue
        plain, chosen, full = _counts(config, work, mesh, int(block.layers))
        kinds = ((plain, lambda b: b), (chosen, lambda b: _selected(b)), (full, _recomputed))
        blocks += [change(replace(block, layers=n)) for n, change in kinds if np.any(n)]
    return replace(work, blocks=tuple(blocks))


def _layers(work: Work) -> int:
    return max(int(block.layers) for block in work.blocks if block.entering)


def _counts(config: Config, work: Work, mesh: Mesh, layers: int) -> tuple[N, N, N]:
    """Of `layers` layers: how many keep everything, how many keep products, how many keep their input only."""
    if config.mode == "budget":
        options = list(choices(config, work))
        fits = np.stack(
            np.broadcast_arrays(*(saved_bytes(predict(o, work, mesh)) <= config.budget for o in options[:-1]), True)
        )
        table = np.array([_counts(option, work, mesh, layers) for option in options], dtype=np.int64)
        plain, chosen, full = table[fits.argmax(0)].T
        return (plain, chosen, full) if fits.ndim > 1 else (int(plain), int(chosen), int(full))
    again = len(layers_of(config, layers))
    return (layers - again, again, 0) if config.mode == "selective" else (layers - again, 0, again)


def _recomputed(block: Block) -> Block:
    """One kind of layer, checkpointed: nothing saved but what enters it; collectives of its forward happen twice."""
    again = sum(op.flops for op in block.ops[: _last_product(block) + _read_on(block)]) + _last_again(block)
    return replace(_kept(block, {}), recomputed=again)


def _last_product(block: Block) -> int:
    """Where the last matrix product of a layer stands that keeps something for a backward of its own."""
    return max(k for k, op in enumerate(block.ops) if op.group in (*PRODUCTS, ADAPTER) and np.any(op.backward))


def _read_on(block: Block) -> bool:
    """Whether what the last product gives is kept for backward, as by a norm behind it."""
    return any(op.saved for op in block.ops[_last_product(block) + 1 :])


def _last_again(block: Block) -> N:
    """FLOPs of the last product where it does run again: one over experts has run when what it keeps is known."""
    last = block.ops[_last_product(block)]
    return last.flops if last.group == "experts" else 0


def _selected(block: Block) -> Block:
    """One kind of layer that keeps what its products and its attention give; the last product's only if it is read on."""
    kept: dict[str, tuple[Saved, ...]] = {}
    run = block.ops[: _last_product(block) + _read_on(block)]
    for op in run:
        if op.group in PRODUCTS and op.shapes:
            kept[op.name] = (Saved("output", ACTIVATION, op.made),)
        elif op.group == "attention":
            kept[op.name] = op.gives or tuple(saved for saved in op.saved if saved.name in RETURNED)
    narrow = sum(op.flops for op in run if op.group == ADAPTER)
    return replace(_kept(block, kept), recomputed=narrow + _last_again(block))


def _kept(block: Block, kept: dict[str, tuple[Saved, ...]]) -> Block:
    """A layer whose operations save only `kept`, with its input; collectives of its forward up to the last product happen
    twice.

    What comes back for its backward is at most what it would have saved and does not keep.
    """
    assert block.entering is not None
    last = _last_product(block)
    ops = tuple(
        replace(
            op,
            saved=kept.get(op.name, ()),
            comms=op.comms + tuple(replace(c, phase=RECOMPUTE) for c in op.comms if c.phase == "forward" and at < last),
        )
        for at, op in enumerate(block.ops)
    )
    stays = {id(block.entering), *map(id, chain(*kept.values()))}
    returning = tuple(saved for op in block.ops for saved in op.saved if id(saved) not in stays)
    return replace(block, ops=(*ops, Op("kept input", saved=(block.entering,))), returning=returning)


def apply(config: Config, trainable: Trainable, mesh: Mesh, table: Any = None) -> Trainable:
    """Wrap the forward of the chosen layers in torch's non-reentrant checkpoint.

    Raises UserError when no module has a name that fits `blocks`.
    """
    from burnish.ops.recompute import recomputed

    assert config.mode != "budget", "a budget is settled before it is applied"
    layers = [layer for part in trainable.parts for layer in blocks_of(part, config.blocks)]
    if not layers:
        raise UserError(
            f"memory.checkpointing.blocks {config.blocks!r} names no module; use a pattern such as layers.*"
        )
    for index in layers_of(config, len(layers)):
        recomputed(layers[index], keep_products=config.mode == "selective")
    return trainable


def blocks_of(part: nn.Module, pattern: str) -> list[nn.Module]:
    """The modules of `part` whose dotted name fits `pattern` part by part, in their order."""
    wanted = pattern.split(".")

    def fits(name: str) -> bool:
        parts = name.split(".")
        return len(parts) == len(wanted) and all(map(fnmatchcase, parts, wanted))

    return [module for name, module in part.named_modules() if fits(name)]


def mapped(work: Work, recompute: N) -> Work:
    """The work of candidates that each recompute by their own index into `mapping.RECOMPUTE`.

    `attention` runs the attention of a layer again and keeps no scores (Korthikanti et al. 2022, section 5); `products`
    runs every second product again, and all that is none; `full` all of a layer.
    """
    _, attending, products, full = (pick(recompute == k, 1, 0) for k in range(4))

    def again(op: Op) -> N:
        share = {"attention": attending, "matmul": products / 2, "experts": products / 2}.get(op.group, products)
        return full + share

    def edit(block: Block) -> Block:
        if block.entering is None:
            return block
        ops = tuple(replace(op, again=again(op), saved=_lessened(op, attending, products, full)) for op in block.ops)
        kept = replace(block.entering, elements=block.entering.elements * full)
        returning = tuple(replace(s, elements=s.elements * full) for op in block.ops for s in op.saved)
        return replace(block, ops=(*ops, Op("kept input", saved=(kept,), launches=0)), returning=returning)

    return work.edit(edit)


def _lessened(op: Op, attending: N, products: N, full: N) -> tuple[Saved, ...]:
    """What an operation still saves: nothing in full; of attention no scores; every second product otherwise."""
    kept = 1 - full - products
    if op.group == "matmul":
        kept = kept + products / 2
    elif op.group == "attention":
        kept = kept + products
    stays = {"scores": kept * (1 - attending)}
    return tuple(replace(saved, elements=saved.elements * stays.get(saved.name, kept)) for saved in op.saved)
