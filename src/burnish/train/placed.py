"""Placed: the tensors of a trainable under their names in the whole model, as torch.distributed.checkpoint plans with them.

Names are `model/<parameter>` for weights and `<key>/<parameter>` for the optimizer's tensors. Where an optimizer holds a
float32 master of a parameter, the master is what `model/` names and the parameter follows from it: so training in 16 bits
goes on from any checkpoint, whether the masters stand in the optimizer or are what ZeRO splits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType
from torch.distributed.tensor import DTensor

from burnish.errors import UserError
from burnish.groups import local
from burnish.ops.together import Together
from burnish.ops.zero_engine import Shards
from burnish.placement import Piece, Placement, whole
from burnish.train.step import Trainable

MODEL = "model"
MASTER = "master"


@dataclass
class Placed:
    """A tensor of this rank with its place; `followers` are rounded or repeated copies that are set after it is read."""

    tensor: Tensor
    placement: Placement
    followers: list[Tensor] = field(default_factory=list)

    def part(self, piece: Piece) -> Tensor:
        """The elements of a piece, as a view."""
        view = self.tensor
        for dim, (first, count) in enumerate(zip(piece.here, piece.size, strict=True)):
            view = view.narrow(dim, first, count)
        return view

    def at(self, offset: Any) -> Tensor:
        """The piece that begins at `offset` in the whole tensor."""
        return self.part(next(piece for piece in self.placement.pieces if piece.there == tuple(offset)))

    def __create_write_items__(self, name: str, _: Any) -> list[WriteItem]:
        size = torch.Size(self.placement.shape)
        properties = TensorProperties(dtype=self.tensor.dtype)
        return [
            WriteItem(
                MetadataIndex(name, chunk.offsets),
                WriteItemType.SHARD,
                tensor_data=TensorWriteData(chunk=chunk, properties=properties, size=size),
            )
            for chunk in self.__create_chunk_list__()
        ]

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        pieces = self.placement.pieces
        return [ChunkStorageMetadata(torch.Size(piece.there), torch.Size(piece.size)) for piece in pieces]

    def __get_tensor_shard__(self, index: MetadataIndex) -> Tensor:
        return self.at(index.offset)


def placed(trainable: Trainable) -> dict[str, Placed]:
    """Every weight and optimizer tensor of this rank by its name in the whole model, a tied one once."""
    found: dict[str, Placed] = {}
    for parameter, place in _parameters(trainable):
        state = trainable.optimizer.state.get(parameter, {})
        master = state.get(MASTER)
        _add(found, MODEL, parameter if master is None else master, place)
        if master is not None:
            found[f"{MODEL}/{place.name}"].followers.append(local(parameter.detach()))
        for key, value in state.items():
            if key != MASTER and isinstance(value, Tensor):
                _add(found, key, value, place if value.dim() else whole(place.name, ()))
    return found


def placed_weights(module: nn.Module) -> dict[str, Placed]:
    """The weights alone of a whole model on one process."""
    plain = Trainable([module], torch.optim.SGD(module.parameters(), 0.0), lambda micros, lr: None)  # type: ignore[arg-type,return-value]
    return placed(plain)


def _own(number: int, name: str) -> str:
    """The name in the whole model of what stands in no `placements`."""
    return name if number == 0 else f"{number}.{name}"


def make_room(trainable: Trainable, saved: dict[str, torch.dtype]) -> None:
    """Give the optimizer the tensors that `saved` names (with their formats), for what is read to go into."""
    state = trainable.optimizer.state
    by_name: dict[str, Tensor] = {}
    for parameter, place in _parameters(trainable):
        by_name.setdefault(place.name, parameter)
        kept = {MASTER: state[parameter][MASTER]} if MASTER in state.get(parameter, {}) else {}
        state.pop(parameter, None)
        if kept:
            state[parameter].update(kept)
    for name, dtype in saved.items():
        key, _, owner = name.partition("/")
        if key == MODEL or owner not in by_name:
            continue
        parameter = by_name[owner]
        scalar = key == "step"
        room = torch.zeros((), device=parameter.device) if scalar else torch.zeros_like(parameter)
        state[parameter][key] = room.to(dtype)


def as_sharded(trainable: Trainable) -> list[Shards]:
    """What splits this trainable's states."""
    ranks = trainable.ranks
    return [m for m in ranks.members if isinstance(m, Shards)] if isinstance(ranks, Together) else []


def _add(found: dict[str, Placed], key: str, tensor: Tensor, place: Placement) -> None:
    """Put a tensor under its whole name; a second one of that name is a copy of the first."""
    name, value = f"{key}/{place.name}", tensor.detach()
    inside = place
    if isinstance(value, DTensor):
        (chunk,) = value.__create_chunk_list__()
        inside, value = place.within(tuple(chunk.offsets), tuple(chunk.sizes)), value.to_local()
    if name not in found:
        found[name] = Placed(value, inside)
    elif found[name].placement != inside:
        raise UserError(f"{name}: two tensors of one rank have this name in the whole model but other places in it")
    elif found[name].tensor.data_ptr() != value.data_ptr():
        found[name].followers.append(value)


def _parameters(trainable: Trainable) -> Iterator[tuple[Tensor, Placement]]:
    """Every parameter and saved buffer once, with its place; the shards of those that are split.

    A module whose parameters ZeRO has gathered gives its shards back when its `state_dict` is asked for.
    """
    seen: set[int] = set()
    for number, part in enumerate(trainable.parts):
        for name, tensor in part.state_dict(keep_vars=True).items():
            if id(tensor) not in seen:
                seen.add(id(tensor))
                yield tensor, trainable.placements.get(f"{number}.{name}") or whole(_own(number, name), tensor.shape)
