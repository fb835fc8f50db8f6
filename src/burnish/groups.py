"""Groups: the process groups of a Mesh, and which rank this process is.

World ranks are laid out with tensor-parallel ranks as neighbours, then those that split one copy of the states (`shard`),
then copies (`replicate`), then pipeline stages (`pp`). Axis names, as collectives are counted: these four, "dp" for
all data-parallel ranks, "kv" for tensor-parallel ranks that hold the same key-value head, "all" for every rank.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import HashStore  # type: ignore[attr-defined]
from torch.distributed.device_mesh import DeviceMesh

from burnish.errors import UserError
from burnish.mesh import Mesh

LAYOUT = ("pp", "replicate", "shard", "tp")  # from the slowest link to the fastest


@dataclass(frozen=True)
class Groups:
    """The groups this process is in. `device_mesh` is of the data-parallel ranks: (replicate, shard), or (shard) without
    replicas; `places` is where this rank stands on each axis."""

    rank: int
    whole: dist.ProcessGroup
    device_mesh: DeviceMesh
    axes: dict[str, str]  # process group name -> axis
    places: dict[str, int] = field(default_factory=dict)
    of: dict[str, dist.ProcessGroup] = field(default_factory=dict)  # axis -> group, where it has more than one rank

    @property
    def first_replica(self) -> bool:
        """Whether this rank's shards are the ones counted where each must be counted once."""
        return self.places["replicate"] == 0

    @property
    def first_of_data(self) -> bool:
        """Whether it is the first of the ranks that see different rows with the same parameters."""
        return self.places["replicate"] == 0 and self.places["shard"] == 0


def started() -> int:
    """Ranks that were started together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank_here() -> int:
    """This process among those started together."""
    return dist.get_rank() if started() > 1 else 0


def check_started(mesh: Mesh) -> None:
    """Raises UserError when the ranks started are not those the mesh asks for."""
    if started() != mesh.world:
        asked = " x ".join(f"{name} {size}" for name in ("dp", "tp", "cp", "pp") if (size := getattr(mesh, name)) > 1)
        raise UserError(
            f"parallel.{asked or 'dp 1'} needs {mesh.world} rank{'s' * (mesh.world > 1)}, but {started()} "
            f"{'were' if started() > 1 else 'was'} started; start {mesh.world}, or change parallel"
        )


def make_groups(mesh: Mesh, device: torch.device) -> Groups:
    """The process groups of `mesh`; every rank calls this. Raises UserError when other ranks were started.

    A process that was started by itself becomes a group of one.
    """
    check_started(mesh)
    if not dist.is_initialized():
        backend = "nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1)
    sizes = (int(mesh.pp), int(mesh.replicas), int(mesh.shards), int(mesh.tp))
    grid = torch.arange(int(mesh.world)).view(sizes)
    whole, rank = dist.group.WORLD, dist.get_rank()
    assert whole is not None
    axes, of = {str(whole.group_name): "all"}, {}
    for axis, size in zip(LAYOUT, sizes, strict=True):
        if size > 1 or axis == "shard":
            of[axis] = _group(grid.movedim(LAYOUT.index(axis), -1).reshape(-1, size), axis, axes)
    if mesh.dp > 1:
        of["dp"] = _group(grid.movedim(-1, 1).reshape(-1, sizes[1] * sizes[2]), "dp", axes)
    names = tuple(axis for axis in ("replicate", "shard") if axis in of)
    places = dict(zip(LAYOUT, (int(n) for n in (grid == rank).nonzero()[0]), strict=True))
    own = grid[places["pp"], :, :, places["tp"]]
    data = DeviceMesh.from_group(
        [of[axis] for axis in names], device.type, mesh=own if len(names) == 2 else own[0], mesh_dim_names=names
    )
    return Groups(rank, whole, data, axes, places, of)


def _group(lines: Tensor, axis: str, axes: dict[str, str]) -> dist.ProcessGroup:
    """This rank's group of those that the `lines` of ranks make."""
    group, _ = dist.new_subgroups_by_enumeration(lines.tolist())
    axes[str(group.group_name)] = axis
    return group


def head_group(groups: Groups, tp: int, holders: int) -> dist.ProcessGroup:
    """The `holders` neighbours among tensor-parallel ranks that hold the same key-value head; every rank calls this."""
    ranks = torch.arange(dist.get_world_size()).view(-1, tp)
    return _group(ranks.reshape(-1, holders), "kv", groups.axes)


def pipeline_group(groups: Groups, stages: int, phase: str) -> dist.ProcessGroup:
    """A further group of this rank's pipeline for what passes in `phase` only; every rank calls this.

    Its traffic counts for axis "pp" and that phase, which is written behind the axis."""
    lines = torch.arange(dist.get_world_size()).view(stages, -1).t()
    return _group(lines, f"pp/{phase}", groups.axes)


def ends_group(groups: Groups, stages: int) -> dist.ProcessGroup | None:
    """The first and the last stage of this rank's pipeline, None on the stages between; every rank calls this."""
    lines = torch.arange(dist.get_world_size()).view(stages, -1).t()[:, [0, -1]]
    group, _ = dist.new_subgroups_by_enumeration(lines.tolist())
    if group is not None and groups.places["pp"] in (0, stages - 1):
        groups.axes[str(group.group_name)] = "pp"
        return group
    return None


def local(tensor: Tensor) -> Tensor:
    """This rank's part of a distributed tensor, or the tensor itself."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor
