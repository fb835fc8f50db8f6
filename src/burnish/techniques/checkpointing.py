"""Gradient checkpointing: keep a layer's input, run its forward again in backward.

Idea    Chen et al. 2016, "Training deep nets with sublinear memory cost" (arXiv 1604.06174).
Price   a second forward of every checkpointed layer; the last matrix product of a layer is not run again, because
        nothing in its backward needs the result (torch stops the second forward early).
Gain    of everything a layer saves, only its input stays between forward and backward.
Limits  the layer's own peak comes back while its backward runs; the loss head is never checkpointed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, model_validator

from burnish.errors import UserError
from burnish.mesh import Mesh
from burnish.section import Section
from burnish.work import RECOMPUTE, Block, Op, Work

if TYPE_CHECKING:
    from burnish.train.step import Trainable


class Config(Section):
    """`mode`: none, full (every layer), or every (each `every`-th layer, counted from the first)."""

    mode: Literal["none", "full", "every"] = "none"
    every: int = Field(default=1, ge=1)

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        return {"mode": value} if isinstance(value, str) else value


def layers_of(config: Config, layers: int) -> list[int]:
    """Indices of the layers that are run again."""
    if config.mode == "none":
        return []
    return list(range(0, layers, config.every if config.mode == "every" else 1))


def check(config: Config, work: Work, mesh: Mesh) -> None:
    """Raises UserError when no layer would be checkpointed although the mode asks for it."""
    layers = max(int(block.layers) for block in work.blocks)
    if config.mode == "every" and config.every > layers:
        raise UserError(f"memory.checkpointing.every is {config.every}; the model has {layers} layers, use 1..{layers}")


def predict(config: Config, work: Work, mesh: Mesh, table: Any = None) -> Work:
    """The work with checkpointed layers keeping their input only and running their forward again."""
    if config.mode == "none":
        return work
    blocks: list[Block] = []
    for block in work.blocks:
        again = len(layers_of(config, int(block.layers))) if block.entering else 0
        if again < block.layers:
            blocks.append(replace(block, layers=block.layers - again))
        if again:
            blocks.append(_recomputed(replace(block, layers=again)))
    return replace(work, blocks=tuple(blocks))


def _recomputed(block: Block) -> Block:
    """One kind of layer, checkpointed: nothing saved but what enters it; collectives of its forward happen twice."""
    assert block.entering is not None
    ops = tuple(
        replace(op, saved=(), comms=op.comms + tuple(replace(c, phase=RECOMPUTE) for c in op.comms if c.phase == "forward"))
        for op in block.ops
    )
    again = sum(op.flops for op in block.ops) - block.ops[-1].flops
    return replace(block, ops=(*ops, Op("kept input", saved=(block.entering,))), recomputed=again)


def apply(config: Config, trainable: Trainable, mesh: Mesh, table: Any = None) -> Trainable:
    """Wrap the forward of the chosen layers in torch's non-reentrant checkpoint."""
    from torch.utils.checkpoint import checkpoint

    for part in trainable.parts:
        layers = part.model.layers
        for index in layers_of(config, len(layers)):
            layer = layers[index]
            layer.forward = _again(layer.forward, checkpoint)
    return trainable


def _again(forward: Any, checkpoint: Any) -> Any:
    from torch.utils._pytree import tree_flatten, tree_unflatten

    def run(*args: Any, **kwargs: Any) -> Any:
        # checkpoint keeps tensors it is given, not those inside an argument: hand it every tensor by itself.
        leaves, form = tree_flatten((args, kwargs))

        def again(*given: Any) -> Any:
            again_args, again_kwargs = tree_unflatten(given, form)
            return forward(*again_args, **again_kwargs)

        return checkpoint(again, *leaves, use_reentrant=False)

    return run
