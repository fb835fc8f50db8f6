"""Pipeline parallelism: cut the layers into `pp` stages and pass micro batches along.

Idea    Huang et al. 2019, "GPipe" (arXiv 1811.06965); Narayanan et al. 2021 (arXiv 2104.04473), section 2.2: one forward,
        one backward (1F1B), and `vpp` chunks a stage taken in turn (interleaved); Qi et al. 2023, "Zero bubble" (arXiv
        2401.10241).
Gain    parameters and states: 1/pp. A stage's activations are those of the micro batches in flight: pp of them on the first
        stage under 1F1B, all under GPipe.
Price   the ranks wait (pp - 1)/vpp of a micro batch's time a step, and send a layer's input forward and its gradient back
        between stages: little, so this is the axis that crosses nodes. A tied head is a copy of the embedding on another
        stage, and the two sum their gradients once a step.
Limits  few micro batches make the wait a large share. The first stage has the embedding, the last one the head, which costs
        as much as some layers; stages are cut so that the slowest is as fast as whole layers allow. Angles of positions are
        made on every stage, once a chunk.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from burnish.errors import UserError
from burnish.mapping import SCHEDULE
from burnish.mesh import Mesh, N, pick
from burnish.plan_schedule import UNDERWAY
from burnish.section import Section
from burnish.stage_cut import chunks, common, layers_of, least, stage_share
from burnish.work import BACKWARD, FORWARD, Block, Comm, Op, Saved, Work

if TYPE_CHECKING:
    from burnish.train.step import Trainable

RUN = ("gpipe", "1f1b")  # schedules that run; the others are planned only
ANGLES = "angles and windows"
GPIPE = SCHEDULE.index("gpipe")


class Config(Section):
    """`schedule`: the order of forward and backward passes. `head_layers`: how many layers the head counts as where stages
    are cut; None: as many as its products take.

    `exact`: each stage has its own whole layers and what else stands on it. A search cuts as `mapping.CUT` says instead,
    its fullest stages standing for all, with `schedule` an index into `mapping.SCHEDULE` and `cut` one into `CUT`.
    """

    schedule: Literal["gpipe", "1f1b", "zero-bubble"] = "1f1b"
    head_layers: float | None = Field(default=None, ge=0)
    exact: ClassVar[bool] = True


def check(config: Config, work: Work, mesh: Mesh) -> None:
    """Raises UserError for more stages than layers, and for chunks that a schedule or the micro batches do not allow."""
    layers, stages = layers_of(work), mesh.pp * mesh.vpp
    if np.any(stages > layers):
        raise UserError(
            f"parallel.pp {mesh.pp} x parallel.vpp {mesh.vpp} is more than the {layers} layers; use at most {layers}"
        )
    if np.any(mesh.vpp > 1) and config.schedule != "1f1b":
        raise UserError(
            f"parallel.schedule {config.schedule} takes no chunks; use parallel.vpp=1 or parallel.schedule=1f1b"
        )
    if np.any((mesh.vpp > 1) & (work.micro % mesh.pp > 0)):
        raise UserError(
            f"parallel.vpp {mesh.vpp}: chunks take micro batches in rounds of parallel.pp {mesh.pp}, and a step has "
            f"{work.micro}; make them a multiple of {mesh.pp}, or use parallel.vpp=1"
        )


def check_rows(rows: int, micro_batch: int, pp: int, dp: int) -> str:
    """What is wrong with how the `rows` of a rank and step are cut into micro batches, and what is right; empty if nothing is.

    A pipeline takes as many micro batches as it has stages at least, or some never work, and all of one size.
    """
    legal = [size for size in range(1, rows // pp + 1) if rows % size == 0]
    if pp == 1 or micro_batch in legal:
        return ""
    count = -(-rows // micro_batch)
    wrong = (
        f"makes {count} micro batches of the {rows} rows a rank has in a step, fewer than parallel.pp {pp}"
        if count < pp
        else f"leaves a smaller last micro batch of the {rows} rows a rank has in a step, which no pipeline takes"
    )
    right = f"use one of {legal}" if legal else f"use a train.global_batch of at least {pp * dp}"
    return f"train.micro_batch {micro_batch} {wrong}; {right}"


def settle(config: Config, work: Work, mesh: Mesh) -> Config:
    """The weight of the head, decided once for the plan and for the run."""
    return config.model_copy(update={"head_layers": head_layers(config, work)})


def head_layers(config: Config, work: Work) -> N:
    """What the head counts as where stages are cut."""
    return work.head_layers if config.head_layers is None else config.head_layers


def predict(config: Any, work: Work, mesh: Mesh, table: Any = None) -> Work:
    """The work of stage `mesh.stage`: its layers, its micro batches in flight, and what it sends to its neighbours.

    A send is counted where it starts; the last chunk of a micro batch sends nothing forward, the first nothing back. What is
    on its way, and what has just come, is held beside everything else.
    """
    first, last = mesh.stage == 0, mesh.stage == mesh.pp - 1
    sent = sum(work.bytes.activation * block.entering.elements for block in work.blocks[1:2] if block.entering)
    forward, backward = (pick(mesh.pp > 1, mesh.vpp - 1 * end, 0) for end in (last, first))
    comms = (
        Comm("p2p", "pp", FORWARD, sent * forward, forward),
        Comm("p2p", "pp", BACKWARD, sent * backward, backward),
    )
    exact = getattr(config, "exact", False)
    staged = _staged if exact else _shared
    moving = (UNDERWAY * (1 * (forward > 0) + (backward > 0)) + 1) * (mesh.pp > 1) if exact else 0
    order = SCHEDULE.index(config.schedule) if isinstance(config.schedule, str) else config.schedule
    return replace(
        staged(config, work, mesh, first, last),
        comms=work.comms + comms,
        passing=work.passing + sent * moving,
        visiting=work.visiting + sent * moving,
        flight=in_flight(order, work.micro, mesh),
    )


def _shared(config: Any, work: Work, mesh: Mesh, first: Any, last: Any) -> Work:
    """A stage as a share of all layers, for a search over stages that stand for others."""
    share = stage_share(config, work, mesh, first, last)

    def edit(block: Block) -> Block:
        if block.entering is not None:
            return replace(block, layers=block.layers * share)
        return replace(block, layers=block.layers * (first if block.name == "embed" else last))

    return work.edit(edit)


def _staged(config: Any, work: Work, mesh: Mesh, first: Any, last: Any) -> Work:
    """A stage with its own whole layers; kinds of layers follow one another as the description lists them.

    What is nowhere on it is left out. Bytes of vectors held in a second format go with the vectors.
    """
    blocks: list[Block] = []
    before: N = 0
    cuts = tuple(chunks(layers_of(work), mesh, head_layers(config, work)))
    for block in _with_angles(_with_copy(work, mesh), layers_of(work), cuts):
        if block.entering is not None:
            own = sum(common(before, before + block.layers, *chunk) for chunk in cuts)
            before = before + block.layers
            blocks.append(replace(block, layers=own))
        else:
            here = 1 if block.name == ANGLES else 1 * (first if block.name == "embed" else last)
            blocks.append(replace(block, layers=block.layers * here, ops=tuple(_here(op, here) for op in block.ops)))
    staged = replace(work, blocks=tuple(block for block in blocks if np.any(block.layers)))
    vectors = _vectors(work)
    return replace(staged, gathered=work.gathered * _vectors(staged) // vectors if np.any(vectors) else work.gathered)


def _here(op: Op, here: N) -> Op:
    """An operation whose passing tensors are there on its own stage only."""
    return replace(op, transient=tuple(replace(saved, elements=saved.elements * here) for saved in op.transient))


def _vectors(work: Work) -> N:
    return sum(n * shape[0] for n, shape in work.shapes() if len(shape) == 1)


def _with_copy(work: Work, mesh: Mesh) -> tuple[Block, ...]:
    """The blocks, with the copy of the embedding that a tied head needs on another stage, and the sum of both gradients."""
    *others, head = work.blocks
    if any(op.name == "head" and op.shapes for op in head.ops):
        return work.blocks
    apart = pick(mesh.pp > 1, 1, 0)
    table = next(op for block in work.blocks for op in block.ops if op.name == "embed")
    both = (("pp", (table.shapes[0][0] * apart, *table.shapes[0][1:])),)
    copy = Op("copy", (table.shapes[0],), partial=both, trained=table.trained, split=table.split, launches=0)

    def summed(op: Op) -> Op:
        return replace(op, partial=(*op.partial, *both)) if op.name == "embed" else op

    here = tuple(replace(block, ops=tuple(map(summed, block.ops))) for block in others)
    return (*here, Block("copy of the embedding", apart, (copy,)), head)


def _with_angles(blocks: tuple[Block, ...], layers: N, cuts: tuple[tuple[N, N], ...]) -> Iterator[Block]:
    """The blocks, with what all layers of a chunk read, the embedding's part of a whole model, as each chunk makes it anew.

    A window is there where a layer reads it: the last `windowed` layers do.
    """
    for block in blocks:
        if block.name != "embed":
            yield block
            continue
        (embed,) = block.ops
        shared = [saved for saved in embed.saved if saved.name in ("angles", "window")]
        alone = tuple(saved for saved in embed.saved if saved not in shared)
        yield replace(block, ops=(replace(embed, saved=alone),))
        reading = {
            "angles": sum(1 * (end > start) for start, end in cuts),
            "window": sum(1 * ((end > start) & (end > layers - embed.windowed)) for start, end in cuts),
        }
        yield Block(ANGLES, 1, (Op(ANGLES, saved=tuple(_times(saved, reading[saved.name]) for saved in shared)),))


def _times(saved: Saved, count: N) -> Saved:
    return replace(saved, elements=saved.elements * count)


def in_flight(schedule: N, micro: N, mesh: Mesh) -> N:
    """Micro batches whose activations a stage holds at once; a chunk of an interleaved stage counts its share.

    1F1B: pp - stage (Narayanan et al. 2021, section 2.2.1). Interleaved: a stage runs 2 (pp - 1 - stage) + pp (vpp - 1)
    chunks forward before the first backward and one in turn with it (section 2.2.2), which is pp (1 + (pp - 1)/(pp vpp))
    micro batches on the first stage (Korthikanti et al. 2022, section 4.2.3). GPipe: all.
    """
    steady = mesh.pp - mesh.stage
    chunks = 2 * (steady - 1) + mesh.pp * (mesh.vpp - 1) + 1
    held = pick(schedule == GPIPE, micro, pick(np.asarray(mesh.vpp) > 1, chunks / mesh.vpp, steady))
    return least(held, micro)


def apply(config: Config, trainable: Trainable, mesh: Mesh, table: Any = None) -> Trainable:
    """Keep of the whole model, which every rank has built from the same seed, the chunks of this rank's stage.

    Raises UserError for a schedule that is planned only, and for a network that is not our decoder.
    """
    from burnish.ops.pipeline_cut import cut

    if config.schedule not in RUN:
        raise UserError(f"parallel.schedule {config.schedule} can be planned but not run yet; use {' or '.join(RUN)}")
    loss: Any = trainable.parts[0]
    if (type(loss).__name__, type(loss.model).__name__) != ("LanguageModelLoss", "Decoder"):
        raise UserError(
            f"parallel.pp: a {type(loss.model).__name__} cannot be cut into stages; use parallel.pp=1, or train our decoder"
        )
    assert config.head_layers is not None  # `settle` decides it
    cuts = chunks(len(loss.model.layers), mesh, config.head_layers)
    return cut(trainable, [range(int(start), int(end)) for start, end in cuts], config.schedule, int(mesh.tp))
