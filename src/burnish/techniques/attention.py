"""Attention's kernel: who computes softmax(q k^T / sqrt(D)) v, and what of it is kept for backward.

Idea    Dao et al. 2022, "FlashAttention" (arXiv 2205.14135): a tile of scores at a time, summed up by online softmax
        (Milakov & Gimelshein 2018, arXiv 1805.02867); backward makes them again. Exact, not an approximation.
Gain    nothing of queries x keys is in memory: q, k, v, output and a sum a query stay, which is linear in the length. A
        window needs no mask of queries x keys.
Price   backward makes the scores again: five products where plain attention has four, seven for the Triton kernels, which
        add nothing up atomically. Plain attention is here to be compared with.
Limits  a mask that is neither causal nor a window (pads on the left, a padded cache) goes to torch's own kernel, which sdpa
        is everywhere. tiled is plain torch, for any device and format: on a CPU about as fast as torch's own, faster under a
        window; on an accelerator slow. triton runs on CUDA, for heads of up to 256 elements.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import Field

from burnish.errors import UserError
from burnish.mesh import Mesh
from burnish.section import Section
from burnish.work import ACTIVATION, COLUMN, ROUNDED, STATISTIC, Block, Op, Saved, Work

if TYPE_CHECKING:
    from burnish.train.step import Trainable

# Kernel -> products of queries x keys x head size that its backward makes; its forward makes two.
PRODUCTS = {"sdpa": 5, "tiled": 5, "triton": 7, "plain": 4}
FORWARD_PRODUCTS = 2
WIDEST = 256  # elements of a head that Triton takes
JOINED = "joined output"  # of attention's output, the name of what the next product alone reads
SCORES = "scores"
PLAIN_LAUNCHES = 5  # scale, mask, softmax and two products


class Config(Section):
    """`kernel`: torch's own (sdpa), plain torch by tiles, Triton, or plain with stored scores; auto takes tiled where a window
    would need a mask of queries x keys, else sdpa. Blocks are rows of a tile of queries and of keys, for tiled."""

    kernel: Literal["auto", "sdpa", "tiled", "triton", "plain"] = "auto"
    block_q: int = Field(default=64, ge=1)
    block_k: int = Field(default=128, ge=1)

    def __str__(self) -> str:
        return self.kernel


def check(config: Config, work: Work, mesh: Mesh) -> None:
    """Raises UserError for a model without attention, and for heads wider than the kernel takes."""
    widths = [np.max(op.width) for block in work.blocks for op in block.ops if op.group == "attention"]
    if not widths:
        raise UserError("techniques.attention: the model has no attention; leave it out")
    if config.kernel == "triton" and max(widths) > WIDEST:
        raise UserError(
            f"techniques.attention.kernel triton: heads of {max(widths):g} elements, it takes up to {WIDEST}; use sdpa or tiled"
        )


def settle(config: Config, work: Work, mesh: Mesh) -> Config:
    """The settings with `auto` decided."""
    if config.kernel != "auto":
        return config
    masks = any(np.any(s.elements) for block in work.blocks for op in block.ops for s in op.saved if s.name == "window")
    return config.model_copy(update={"kernel": "tiled" if masks else "sdpa"})


def predict(config: Config, work: Work, mesh: Mesh, table: Any = None) -> Work:
    """The work with attention's kernel: its products in backward, and what is kept."""
    if config.kernel in ("auto", "sdpa"):
        return work

    def edit(block: Block) -> Block:
        return replace(block, ops=tuple(_changed(op, config.kernel) for op in block.ops))

    return work.edit(edit)


def _changed(op: Op, kernel: str) -> Op:
    if op.name == "embed":  # holds the mask of a window for all layers
        return replace(op, saved=tuple(s for s in op.saved if s.name != "window"))
    if op.group != "attention":
        return op
    op = replace(op, backward=op.flops // FORWARD_PRODUCTS * PRODUCTS[kernel])
    if kernel != "plain":  # several sequences of a row are one call: no outputs to join
        return replace(op, saved=tuple(s for s in op.saved if s.name != JOINED))
    # Its backward reads the probabilities, not the output; 16-bit products read a rounded copy of them.
    pairs = op.flops // int(2 * FORWARD_PRODUCTS * op.width)
    output = next(s for s in op.saved if s.name == "output")
    kept = (
        next(s for s in op.saved if s.name == "q, k, v"),
        Saved(SCORES, STATISTIC, pairs, COLUMN),
        Saved(SCORES, ROUNDED, pairs, COLUMN),
        replace(output, name=JOINED),
    )
    given = (Saved(SCORES, ACTIVATION, pairs, COLUMN), output)
    return replace(op, saved=kept, gives=given, scores=pairs, launches=PLAIN_LAUNCHES)


def apply(config: Config, trainable: Trainable, mesh: Mesh, table: Any = None) -> Trainable:
    """Give every attention layer its kernel, once that agrees with a plain softmax on this device.

    Raises UserError for Triton where it does not run, RuntimeError for a kernel that computes something else.
    """
    from burnish.models.attention import check_attention
    from burnish.models.decoder import Attention
    from burnish.models.encoder import Attention as EncoderAttention
    from burnish.ops.flash_attention import kernel_of, runs_triton

    layers = [m for part in trainable.parts for m in part.modules() if isinstance(m, Attention | EncoderAttention)]
    if not layers:
        raise UserError(
            "techniques.attention: only this package's decoders and encoders have layers that take a kernel"
        )
    weight = layers[0].q.weight
    if config.kernel == "triton" and not runs_triton(weight):
        raise UserError(
            "techniques.attention.kernel triton runs on CUDA with triton installed, in 16 or 32 bits, and this is "
            f"{weight.device.type} in {weight.dtype}; use tiled or sdpa"
        )
    kernel = kernel_of(config.kernel, (config.block_q, config.block_k))
    check_attention(weight.device, weight.dtype, kernel)
    for layer in layers:
        layer.kernel = kernel
    return trainable
