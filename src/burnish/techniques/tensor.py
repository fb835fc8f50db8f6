"""Tensor parallelism: split the matrices of every layer over `tp` ranks; with sequence parallelism the tokens between too.

Idea    Shoeybi et al. 2019, "Megatron-LM" (arXiv 1909.08053), section 3: the first matrix of a pair is split by columns,
        the second by rows, so that one sum over ranks a pair and direction is enough; heads and vocabulary likewise.
        Korthikanti et al. 2022 (arXiv 2205.05198), section 4: the sum as reduce-scatter and all-gather of tokens, so that
        norms, residual sums and what they keep are split as well, at the same bytes.
Gain    parameters, products and what products keep: 1/tp. Norms and layer inputs too with sequence parallelism.
Price   four all-reduces of a layer's input a layer and micro batch, two in forward and two in backward, on the slowest link
        of the `tp` ranks; none of them hides behind much.
Limits  heads must divide; key-value heads fewer than tp are repeated. Beyond a node's fast links it stops to pay.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from burnish.errors import UserError
from burnish.mesh import Mesh, N
from burnish.section import Section
from burnish.work import BACKWARD, COLUMN, EXPERT, FORWARD, ROW, Block, Comm, Op, Saved, Work

PLAN_ONLY = True


class Config(Section):
    """`sequence`: split the tokens between the products as well."""

    sequence: bool = False


def check(config: Config, work: Work, mesh: Mesh) -> None:
    """Raises UserError when the heads of any layer do not divide by tp (single mapping only)."""
    for block in work.blocks:
        for op in block.ops:
            if op.name == "q" and np.any(op.shapes[0][0] % mesh.tp):
                raise UserError(
                    f"parallel.tp {mesh.tp} does not divide the {op.shapes[0][0]} features of the query heads"
                )


def predict(config: Any, work: Work, mesh: Mesh, table: Any = None) -> Work:
    """The work of one of `tp` ranks; `config.sequence` may be an array of 0 and 1."""
    if not np.any(np.asarray(mesh.tp) > 1):
        return work
    sequence = config.sequence * 1
    tokens = 1 + (mesh.tp - 1) * sequence

    def divide(op: Op, block: Block) -> Op:
        by = {COLUMN: mesh.tp, ROW: mesh.tp, EXPERT: 1}.get(op.split, tokens)
        kept = tuple(_kept(saved, mesh.tp, tokens) for saved in op.saved)
        return replace(
            op,
            shapes=tuple(_shape(shape, op.split, mesh.tp) for shape in op.shapes),
            flops=op.flops // by,
            backward=op.backward // by,
            moved=op.moved // by,
            loose=op.loose // by,
            scores=op.scores // by,
            made=op.made // (1 if op.split == ROW else by),
            saved=kept,
            transient=tuple(_kept(saved, mesh.tp, tokens) for saved in op.transient),
            comms=op.comms + _comms(op, block, work, mesh, sequence),
        )

    def edit(block: Block) -> Block:
        entering = block.entering and _kept(block.entering, mesh.tp, tokens)
        return replace(block, ops=tuple(divide(op, block) for op in block.ops), entering=entering)

    return work.edit(edit)


def _kept(saved: Saved, tp: N, tokens: N) -> Saved:
    by = {COLUMN: tp, EXPERT: 1}.get(saved.split, tokens)
    return replace(saved, elements=saved.elements // by)


def _shape(shape: tuple[N, ...], split: str, tp: N) -> tuple[N, ...]:
    """A rank's part of a parameter: rows (output features) for a column split, columns for a row split."""
    if split == COLUMN:
        return (-(-shape[0] // tp), *shape[1:])
    return (*shape[:-1], -(-shape[-1] // tp)) if split == ROW and len(shape) > 1 else shape


def _comms(op: Op, block: Block, work: Work, mesh: Mesh, sequence: N) -> tuple[Comm, ...]:
    """Sums that close a pair of matrices in forward and open it in backward; split by tokens they are two halves."""
    pairs = {"o": FORWARD, "down": FORWARD, "mixer_out": FORWARD, "shared_down": FORWARD}
    opening = {"q": BACKWARD, "up": BACKWARD, "mixer_in": BACKWARD, "shared_up": BACKWARD}
    phase = (pairs | opening).get(op.name)
    if phase is None or block.entering is None:
        return ()
    size = work.bytes.activation * block.entering.elements
    split = (mesh.tp > 1) * 1
    whole, halves = split * (1 - sequence), split * sequence
    return (
        Comm("all_reduce", "tp", phase, size * whole, whole),
        Comm("all_gather", "tp", phase, size * halves, halves),
        Comm("reduce_scatter", "tp", phase, size * halves, halves),
    )
