"""Pieces: tensors of many ranks in one folder of safetensors files, as torch.distributed.checkpoint writes and reads them.

Each rank writes the pieces that fall to it into `model.safetensors` and `optimizer.safetensors` (`...-00001-of-00004` on four
ranks); `pieces.json` says of each tensor its shape, its format, and which file holds which box of it. Nothing is pickled, so
nothing runs when a checkpoint is read; a file holds a whole tensor under its own name.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, SavePlan, SavePlanner
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

from burnish.crew import Crew
from burnish.train.placed import MODEL, Placed

INDEX = "pieces.json"
WEIGHTS, OPTIMIZER = "model", "optimizer"


def file_name(kind: str, rank: int, world: int) -> str:
    """Where rank `rank` writes tensors of a kind."""
    return f"{kind}.safetensors" if world == 1 else f"{kind}-{rank + 1:05d}-of-{world:05d}.safetensors"


def flush(path: Path) -> None:
    """Put a file, or the names in a folder, on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class Saving(DefaultSavePlanner):
    """Plans which rank writes which piece; of copies the lowest rank writes one."""

    def __init__(self) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False, dedup_save_to_lowest_rank=False)

    def lookup_object(self, index: MetadataIndex) -> Tensor:
        return self.state_dict[index.fqn].at(index.offset)  # type: ignore[no-any-return]


class Loading(DefaultLoadPlanner):
    """Plans which pieces a rank reads; what it does not hold is left alone."""

    def __init__(self) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)

    def set_up_planner(
        self, state_dict: dict[str, Any], metadata: Metadata | None = None, is_coordinator: bool = False
    ) -> None:
        """As before it, without a look for tensors on the meta device, which loses whatever is no tensor."""
        self.original_state_dict = self.state_dict = state_dict
        self.metadata, self.is_coordinator = metadata, is_coordinator

    def lookup_tensor(self, index: MetadataIndex) -> Tensor:
        return self.state_dict[index.fqn].at(index.offset)  # type: ignore[no-any-return]


class PieceWriter(StorageWriter):
    """Writes the pieces of rank `rank` of `world` into `folder`, which exists; the first rank writes the index."""

    def __init__(self, folder: Path, rank: int, world: int) -> None:
        self.folder, self.rank, self.world = folder, rank, world

    def reset(self, checkpoint_id: Any = None) -> None: ...

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None: ...

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        return plans

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        files: dict[str, dict[str, Tensor]] = {
            file_name(kind, self.rank, self.world): {} for kind in (WEIGHTS, OPTIMIZER)
        }
        results = []
        for item in plan.items:
            kind = WEIGHTS if item.index.fqn.startswith(f"{MODEL}/") else OPTIMIZER
            file = file_name(kind, self.rank, self.world)
            assert item.tensor_data is not None
            key = _key(item.index, tuple(item.tensor_data.chunk.sizes) == tuple(item.tensor_data.size))
            files[file][key] = planner.resolve_data(item).detach().cpu().contiguous().clone()  # type: ignore[union-attr]
            results.append(WriteResult(item.index, item.tensor_data.chunk.sizes.numel(), (file, key)))
        for file, tensors in files.items():
            save_file(tensors, self.folder / file)
            flush(self.folder / file)
        done: Future[list[WriteResult]] = Future()
        done.set_result(results)
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        where = {(r.index.fqn, tuple(r.index.offset or ())): r.storage_data for rank in results for r in rank}
        tensors = {}
        for name, about in sorted(metadata.state_dict_metadata.items()):
            assert isinstance(about, TensorStorageMetadata)
            pieces = [
                {"at": list(c.offsets), "size": list(c.sizes)}
                | dict(zip(("file", "key"), where[name, tuple(c.offsets)], strict=True))
                for c in about.chunks
            ]
            dtype = str(about.properties.dtype).removeprefix("torch.")
            tensors[name] = {"shape": list(about.size), "dtype": dtype, "pieces": pieces}
        (self.folder / INDEX).write_text(json.dumps({"tensors": tensors}, indent=1), encoding="utf-8")
        flush(self.folder / INDEX)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        return True


class PieceReader(StorageReader):
    """Reads pieces from `folder`: of each file only what this rank asks for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.where: dict[tuple[str, tuple[int, ...]], tuple[str, str]] = {}

    def reset(self, checkpoint_id: Any = None) -> None: ...

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        found: dict[str, Any] = {}
        for name, about in read_index(self.folder).items():
            chunks = [ChunkStorageMetadata(torch.Size(p["at"]), torch.Size(p["size"])) for p in about["pieces"]]
            properties = TensorProperties(dtype=getattr(torch, about["dtype"]))
            found[name] = TensorStorageMetadata(properties, torch.Size(about["shape"]), chunks)
            self.where |= {(name, tuple(p["at"])): (p["file"], p["key"]) for p in about["pieces"]}
        return Metadata(found)

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None: ...

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        with ExitStack() as stack:
            files: dict[str, Any] = {}
            for item in plan.items:
                file, key = self.where[item.storage_index.fqn, tuple(item.storage_index.offset or ())]
                if file not in files:
                    files[file] = stack.enter_context(safe_open(self.folder / file, framework="pt"))
                ranges = zip(item.storage_offsets, item.lengths, strict=True)
                box = tuple(slice(first, first + count) for first, count in ranges)
                stored = files[file].get_slice(key)[box] if box else files[file].get_tensor(key)
                planner.resolve_tensor(item).copy_(stored)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        return True


def write_pieces(folder: Path, tensors: Mapping[str, Placed], crew: Crew) -> None:
    """Write what all ranks hold into `folder`. Raises CheckpointException, on every rank, where one fails."""
    with _unwarned():
        save(
            dict(tensors),
            storage_writer=PieceWriter(folder, crew.rank, crew.world),
            planner=Saving(),
            process_group=crew.group,
            no_dist=crew.group is None,
        )


def read_pieces(folder: Path, tensors: Mapping[str, Placed], crew: Crew) -> None:
    """Fill `tensors` from `folder`, whoever wrote it. Raises CheckpointException, on every rank, where one fails."""
    with _unwarned():
        load(
            dict(tensors),
            storage_reader=PieceReader(folder),
            planner=Loading(),
            process_group=crew.group,
            no_dist=crew.group is None,
        )


@contextmanager
def _unwarned() -> Iterator[None]:
    """It warns of being one process, which is meant."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")
        yield


def read_index(folder: Path) -> dict[str, Any]:
    """Of each tensor of a checkpoint its shape, format and pieces."""
    tensors: dict[str, Any] = json.loads((folder / INDEX).read_text(encoding="utf-8"))["tensors"]
    return tensors


def _key(index: MetadataIndex, all_of_it: bool) -> str:
    """`embed.weight` for a whole weight, `embed.weight@512,0` for a piece; the optimizer's begin with what they are."""
    name = index.fqn.removeprefix(f"{MODEL}/")
    return name if all_of_it else f"{name}@{','.join(map(str, index.offset or ()))}"
