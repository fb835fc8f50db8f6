"""Pipeline parallelism: cut the layers into `pp` stages and pass micro batches along.

Idea    Huang et al. 2019, "GPipe" (arXiv 1811.06965); Narayanan et al. 2021 (arXiv 2104.04473), section 2.2: one forward,
        one backward (1F1B), and `vpp` chunks a stage taken in turn (interleaved); Qi et al. 2023, "Zero bubble" (arXiv
        2401.10241).
Gain    parameters and states: 1/pp. A stage's activations are those of the micro batches in flight: pp of them on the first
        stage under 1F1B, all under GPipe.
Price   the ranks wait (pp - 1)/vpp of a micro batch's time a step, and send a layer's input forward and its gradient back
        between stages: little, so this is the axis that crosses nodes.
Limits  few micro batches make the wait a large share. The first stage has the embedding, the last one the head.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from burnish.errors import UserError
from burnish.mesh import Mesh, N, pick
from burnish.section import Section
from burnish.work import BACKWARD, FORWARD, Block, Comm, Work

PLAN_ONLY = True
GPIPE = 0
# Between whole layers; so that they take equally long; so that they have equally many parameters.
CUT = ("layers", "time", "parameters")


class Config(Section):
    """`schedule`: an index into `mapping.SCHEDULE`. `cut`: where stages end, an index into `CUT`."""

    schedule: int = 1
    cut: int = 0


def check(config: Config, work: Work, mesh: Mesh) -> None:
    """Raises UserError for more stages than layers."""
    layers = sum(block.layers for block in work.blocks if block.entering)
    if np.any(mesh.pp * mesh.vpp > layers):
        raise UserError(f"parallel.pp {mesh.pp} x vpp {mesh.vpp} is more than the {layers} layers")


def predict(config: Any, work: Work, mesh: Mesh, table: Any = None) -> Work:
    """The work of stage `mesh.stage`: its layers, its micro batches in flight, and what it sends to its neighbours."""
    last = mesh.stage == mesh.pp - 1
    first = mesh.stage == 0
    share = stage_share(config, work, mesh, first, last)

    def edit(block: Block) -> Block:
        if block.entering is not None:
            return replace(block, layers=block.layers * share)
        return replace(block, layers=block.layers * (first if block.name == "embed" else last))

    sent = sum(work.bytes.activation * block.entering.elements for block in work.blocks[1:2] if block.entering)
    chunks = mesh.vpp
    forward = pick((mesh.pp > 1) & ~(last & (chunks == 1)), 1, 0) * chunks
    backward = pick((mesh.pp > 1) & ~(first & (chunks == 1)), 1, 0) * chunks
    comms = (
        Comm("p2p", "pp", FORWARD, sent * forward, forward),
        Comm("p2p", "pp", BACKWARD, sent * backward, backward),
    )
    return replace(work.edit(edit), comms=work.comms + comms, flight=in_flight(config.schedule, work.micro, mesh))


def stage_share(config: Any, work: Work, mesh: Mesh, first: Any, last: Any) -> N:
    """Share of all layers that a stage has.

    Where whole layers would be uneven, the embedding and the head count as one each if that makes chunks even (Llama 3,
    arXiv 2407.21783, section 3.3.2), else the fuller stages have one layer more. Cut by parameters they count as the layers
    that have as many.
    """
    layers = sum(block.layers for block in work.blocks if block.entering)
    cut = np.asarray(config.cut)
    chunks = mesh.pp * mesh.vpp
    whole = 1 * ((layers % chunks > 0) & ((layers + 2) % chunks == 0))
    ends = pick(cut == CUT.index("parameters"), end_layers(work), whole)
    each = (layers + 2 * ends) / chunks
    each = pick(cut == CUT.index("layers"), np.ceil(each), each)
    return np.maximum(each * mesh.vpp - ends * (1 * first + 1 * last), 0) / layers


def end_layers(work: Work) -> N:
    """Layers that have as many parameters as the embedding."""
    layers = [block for block in work.blocks if block.entering]
    inside = sum(block.layers * _elements(block) for block in layers)
    count = sum(block.layers for block in layers)
    return sum(_elements(block) for block in work.blocks if block.name == "embed") * count / np.maximum(inside, 1)


def _elements(block: Block) -> N:
    return sum((shape[0] * shape[1] for op in block.ops for shape in op.shapes if len(shape) > 1), 0)


def in_flight(schedule: N, micro: N, mesh: Mesh) -> N:
    """Micro batches whose activations a stage holds at once; a chunk of an interleaved stage counts its share.

    1F1B: pp - stage (Narayanan et al. 2021, section 2.2.1). Interleaved: a stage runs 2 (pp - 1 - stage) + pp (vpp - 1)
    chunks forward before the first backward and one in turn with it (section 2.2.2), which is pp (1 + (pp - 1)/(pp vpp))
    micro batches on the first stage (Korthikanti et al. 2022, section 4.2.3). GPipe: all.
    """
    steady = mesh.pp - mesh.stage
    chunks = 2 * (steady - 1) + mesh.pp * (mesh.vpp - 1) + 1
    held = pick(schedule == GPIPE, micro, pick(np.asarray(mesh.vpp) > 1, chunks / mesh.vpp, steady))
    return np.minimum(held, micro)
