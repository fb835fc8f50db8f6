"""Expert parallelism: lay the experts of a layer over `ep` ranks and send each token to those it is routed to.

Idea    Lepikhin et al. 2020, "GShard" (arXiv 2006.16668): the ranks that hold different tokens hold different experts;
        one all-to-all brings tokens to experts, one brings them back. Taken as balanced: every expert gets its share.
        `etp` ranks may split each expert's matrices as tensor parallelism does.
Gain    expert parameters and their states: 1/(ep etp).
Price   two all-to-alls of the routed tokens a layer in forward and two in backward.
Limits  experts must divide by ep; ep etp must divide the ranks of a pipeline stage.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from burnish.errors import UserError
from burnish.mesh import Mesh, pick
from burnish.section import Section
from burnish.work import ACTIVATION, BACKWARD, EXPERT, FORWARD, Block, Comm, Op, Saved, Work

PLAN_ONLY = True


class Config(Section):
    """Nothing to set: the degrees are the mesh's."""


def check(config: Config, work: Work, mesh: Mesh) -> None:
    """Raises UserError when there are no experts, they do not divide, or there are not as many ranks (single mapping)."""
    counts = [int(op.parts) for block in work.blocks for op in block.ops if op.group == "experts"]
    if not counts:
        raise UserError(f"parallel.ep {mesh.ep}: the model has no experts; use parallel.ep=1")
    ranks, spread = mesh.dp * mesh.cp * mesh.tp, mesh.ep * mesh.etp
    legal = [n for n in range(1, counts[0] + 1) if counts[0] % n == 0 and np.all(ranks % (n * mesh.etp) == 0)]
    if np.any(counts[0] % mesh.ep) or np.any(ranks % spread):
        raise UserError(
            f"parallel.ep {mesh.ep} must divide {counts[0]} experts and, with the ranks that split one, the {ranks} ranks "
            f"of a stage; use {', '.join(map(str, legal))}"
        )


def predict(config: Any, work: Work, mesh: Mesh, table: Any = None) -> Work:
    """The work of one rank: its experts, as many routed tokens as before, and the tokens' way there and back.

    Tensor-parallel ranks hold the same tokens, and each sends its share of them.
    """

    def divide(op: Op) -> Op:
        if op.split != EXPERT:
            return op
        kept = tuple(replace(saved, elements=saved.elements // mesh.tp) for saved in op.saved)
        return replace(
            op,
            shapes=tuple((shape[0] // mesh.ep // mesh.etp, *shape[1:]) for shape in op.shapes),
            flops=op.flops // mesh.tp,
            backward=op.backward // mesh.tp,
            moved=op.moved // mesh.tp,
            loose=op.loose // mesh.tp,
            passed=op.passed // mesh.tp,
            made=op.made // mesh.tp,
            parts=pick(op.parts > mesh.ep, op.parts // mesh.ep, 1) if op.group == "experts" else op.parts,
            saved=kept,
            comms=op.comms + _sent(op, work, mesh),
        )

    def edit(block: Block) -> Block:
        return replace(block, ops=tuple(map(divide, block.ops)))

    return work.edit(edit)


def _sent(op: Op, work: Work, mesh: Mesh) -> tuple[Comm, ...]:
    if op.group != "dispatch":
        return ()
    spread = ((mesh.ep * mesh.etp) > 1) * 1
    size = work.bytes.of((Saved("routed", ACTIVATION, op.passed // mesh.tp),)) * spread
    return Comm("all_to_all", "ep", FORWARD, size, spread), Comm("all_to_all", "ep", BACKWARD, size, spread)
