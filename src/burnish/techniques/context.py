"""Context parallelism: split the tokens of each sequence over `cp` ranks.

Idea    Liu et al. 2023, "Ring attention" (arXiv 2310.01889): every rank has the queries of its tokens; keys and values go
        round, and attention sums up block by block. Chunks from both ends of the sequence make the causal work equal.
Gain    everything that grows with tokens: 1/cp; parameters and states stay.
Price   keys and values pass cp - 1 ranks in forward and, with their gradients, in backward; they hide behind attention
        while a rank's share of it is long enough. Gradients are summed over cp as over dp.
Limits  the sequence must divide by 2 cp.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from burnish.errors import UserError
from burnish.mesh import Mesh, N, pick
from burnish.section import Section
from burnish.work import BACKWARD, FORWARD, Block, Comm, Op, Saved, Work

PLAN_ONLY = True


class Config(Section):
    """Nothing to set: the degree is the mesh's."""


def check(config: Config, work: Work, mesh: Mesh) -> None:
    """Raises UserError when the tokens of a micro batch do not divide; that each row's do is for the recipe to check."""
    if np.any((work.tokens % (2 * mesh.cp) > 0) & (mesh.cp > 1)):
        raise UserError(
            f"parallel.cp {mesh.cp}: {work.tokens} tokens do not divide into 2 x {mesh.cp} chunks; data.seq must be a "
            f"multiple of {2 * mesh.cp}"
        )


def predict(config: Any, work: Work, mesh: Mesh, table: Any = None) -> Work:
    """The work of one of `cp` ranks."""
    if not np.any(np.asarray(mesh.cp) > 1):
        return work
    cp = mesh.cp

    def kept(saved: Saved) -> Saved:
        return saved if saved.name == "weight gradient" else replace(saved, elements=saved.elements // cp)

    def passing(saved: Saved, made: N) -> Saved:
        """A chunk of the loss is one of as many tokens, where there are as many."""
        if saved.name != "logits":
            return kept(saved)
        return replace(saved, elements=pick(saved.elements > made // cp, made // cp, saved.elements))

    def sent(comm: Comm) -> Comm:
        return replace(comm, bytes=comm.bytes // cp)

    def divide(op: Op) -> Op:
        return replace(
            op,
            flops=op.flops // cp,
            backward=op.backward // cp,
            moved=op.moved // cp,
            loose=op.loose // cp,
            scores=op.scores // cp,
            passed=op.passed // cp,
            made=op.made // cp,
            saved=tuple(map(kept, op.saved)),
            transient=tuple(passing(saved, op.made) for saved in op.transient),
            comms=tuple(map(sent, op.comms)) + _ring(op, work, cp),
        )

    def edit(block: Block) -> Block:
        return replace(block, ops=tuple(map(divide, block.ops)), entering=block.entering and kept(block.entering))

    return replace(work.edit(edit), tokens=work.tokens // cp, step_tokens=work.step_tokens // cp)


def _ring(op: Op, work: Work, cp: N) -> tuple[Comm, ...]:
    """Keys and values of the other ranks, forward and (with gradients) backward."""
    if op.name != "attention":
        return ()
    size = work.bytes.activation * (op.passed // cp) * (cp - 1)
    return Comm("p2p", "cp", FORWARD, size, cp - 1), Comm("p2p", "cp", BACKWARD, 2 * size, cp - 1)
