"""Cutting a whole model into the chunks of one pipeline stage, with what goes with them: optimizer, tie, names, engine.

Every rank has built the whole model and drops what other stages have, so that weights are those of one process.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from burnish.groups import Groups, ends_group
from burnish.ops.master_weights import MasterWeights, keep_only
from burnish.ops.pipeline_engine import Engine
from burnish.ops.pipeline_links import Links, Shape
from burnish.ops.pipeline_stage import Stage
from burnish.ops.tied_copy import TiedCopy
from burnish.placement import Placement, whole

if TYPE_CHECKING:
    from burnish.train.step import Trainable

EMBEDDING, HEAD = "model.embed.weight", "model.head.weight"


def cut(trainable: Trainable, chunks: Sequence[range], schedule: str, tp: int) -> Trainable:
    """The trainable with this rank's `chunks` of layers as its parts, run by an engine.

    `tp` ranks may divide the tokens of hidden states: what passes between stages has the shape the embedding gives it.
    """
    groups = trainable.together().groups
    loss: Any = trainable.parts[0]
    stage, stages = groups.places["pp"], groups.of["pp"].size()
    shape, dtype = hidden_states(loss.model, tp)
    tied = loss.model.head.weight is loss.model.embed.weight
    parts = [
        Stage(loss, layers, first=stage == 0 and number == 0, last=stage == stages - 1 and number == len(chunks) - 1)
        for number, layers in enumerate(chunks)
    ]
    _keep(trainable, parts)
    if tied:
        _tie(trainable, parts, groups, stages)
    trainable.placements = dict(placements(trainable, parts, tied))
    trainable.parts = list(parts)
    trainable.engine = Engine(parts, Links(groups, len(chunks), shape, dtype), groups.of["pp"], schedule)
    return trainable


@torch.no_grad()
def hidden_states(decoder: Any, tp: int) -> tuple[Any, torch.dtype]:
    """The shape of hidden states between layers as a function of that of ids, and their format, seen on `tp` tokens."""
    ids = torch.zeros((1, tp), dtype=torch.long, device=decoder.embed.weight.device)
    made = decoder.embed(ids)
    return partial(_shape, tp // made.shape[1], made.shape[2]), made.dtype


def _shape(parts: int, width: int, ids: Shape) -> Shape:
    return ids[0], ids[1] // parts, width


def _keep(trainable: Trainable, parts: Sequence[Stage]) -> None:
    """The optimizer over the parameters of `parts` only; a loss scale on the part that gives the loss."""
    kept = [parameter for part in parts for parameter in part.parameters()]
    optimizer = trainable.optimizer
    if not isinstance(optimizer, MasterWeights):
        keep_only(optimizer, kept)
        return
    optimizer.keep(kept)
    if optimizer.scale is not None and parts[-1].model.head is not None:
        optimizer.scale.attach_loss(parts[-1])


def _tie(trainable: Trainable, parts: Sequence[Stage], groups: Groups, stages: int) -> None:
    """Keep embedding and head the same matrix, on the two stages that have one."""
    group = ends_group(groups, stages)
    embed, head = parts[0].model.embed, parts[-1].model.head
    owner = head if embed is None else embed
    if owner is not None and owner.weight.requires_grad:
        assert group is not None
        trainable.join(TiedCopy(owner.weight, group, repeated=embed is None))


def placements(trainable: Trainable, parts: Sequence[Stage], tied: bool) -> list[tuple[str, Placement]]:
    """Where each parameter lies in the whole model, by the number of its part and its name: under its own name, but for a
    tied head."""
    placed = []
    for number, part in enumerate(parts):
        for name, tensor in part.state_dict().items():
            own = EMBEDDING if tied and name == HEAD else name
            placed.append((f"{number}.{name}", trainable.placements.get(f"0.{own}", whole(own, tensor.shape))))
    return placed
