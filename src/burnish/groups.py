"""Groups: the process groups of a Mesh, and which rank this process is.

World ranks are laid out row by row: `shard` neighbours split one copy of the states, the rows are replicas of each other.
Axis names, as collectives are counted: "dp" all data-parallel ranks, "shard" those of one row, "replicate" those of one
column.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import HashStore  # type: ignore[attr-defined]
from torch.distributed.device_mesh import DeviceMesh

from burnish.errors import UserError
from burnish.mesh import Mesh


@dataclass(frozen=True)
class Groups:
    """The groups this process is in. `device_mesh` has dimensions (replicate, shard), or (shard) without replicas."""

    rank: int
    whole: dist.ProcessGroup
    device_mesh: DeviceMesh
    axes: dict[str, str]  # process group name -> axis

    @property
    def first_replica(self) -> bool:
        """Whether this rank's shards are the ones counted where each must be counted once."""
        return self.rank < self.device_mesh.size(-1)


def started() -> int:
    """Ranks that were started together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def check_started(mesh: Mesh) -> None:
    """Raises UserError when the ranks started are not those the mesh asks for."""
    if started() != mesh.world:
        raise UserError(
            f"parallel.dp is {mesh.dp}, but {started()} rank{'s were' if started() > 1 else ' was'} started; "
            f"start {mesh.world}, or set parallel.dp to {started()}"
        )


def make_groups(mesh: Mesh, device: torch.device) -> Groups:
    """The process groups of `mesh`; every rank calls this. Raises UserError when other ranks were started.

    A process that was started by itself becomes a group of one.
    """
    check_started(mesh)
    if not dist.is_initialized():
        backend = "nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1)
    ranks = torch.arange(int(mesh.world)).view(int(mesh.replicas), int(mesh.shards))
    whole = dist.group.WORLD
    assert whole is not None
    axes = {str(whole.group_name): "dp"}
    own = []
    for axis, lines in (("replicate", ranks.t()), ("shard", ranks)):
        if axis == "replicate" and mesh.replicas == 1:
            continue
        group, _ = dist.new_subgroups_by_enumeration(lines.tolist())
        axes[str(group.group_name)] = axis
        own.append((axis, group))
    names = tuple(axis for axis, _ in own)
    grid = ranks if len(own) == 2 else ranks[0]
    device_mesh = DeviceMesh.from_group([g for _, g in own], device.type, mesh=grid, mesh_dim_names=names)
    return Groups(dist.get_rank(), whole, device_mesh, axes)


def local(tensor: Tensor) -> Tensor:
    """This rank's part of a distributed tensor, or the tensor itself."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor
