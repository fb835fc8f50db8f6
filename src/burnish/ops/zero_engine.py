"""Shards: one engine for ZeRO stages 1, 2 and 3 over PyTorch's fully sharded data parallel (FSDP2).

The stages differ in when parameters are gathered and gradients reduced (Rajbhandari et al. 2020, arXiv 1910.02054, sections
5 and 7):

    stage   parameters whole            gathered                       gradients reduced
    1       between updates             after the update               in the backward of the last micro batch
    2       between updates             after the update               in every backward
    3       while a group is in use     in forward, and in backward    in every backward

Stages 1 and 2 drop the whole parameters in the last backward and gather them again once the shards are updated. Keeping
them instead would train nothing without a word: forward would go on with the old values. `reduced` refuses that.

With 16-bit compute the shards are the float32 masters, and matrices are rounded on the way when they are gathered.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor

from burnish.groups import Groups, local
from burnish.ops.master_weights import MasterWeights
from burnish.ops.together import Member

if TYPE_CHECKING:
    from burnish.train.step import Trainable


class Shards(Member):
    """Ranks that each hold a part of every state. The optimizer's groups and settings are kept, its parameters replaced."""

    def __init__(self, trainable: Trainable, groups: Groups, stage: int, offload: bool = False) -> None:
        self.groups = groups
        self.stage = stage
        self.scale = None
        compute = MixedPrecisionPolicy(cast_forward_inputs=False)
        if isinstance(masters := trainable.optimizer, MasterWeights):
            self.scale, trainable.optimizer = masters.scale, masters.release()
            compute = MixedPrecisionPolicy(masters.dtype, torch.float32, cast_forward_inputs=False)
        assert not trainable.optimizer.state, "states are split before the first step"
        device = next(trainable.parts[0].parameters()).device
        host = CPUOffloadPolicy(pin_memory=device.type != "cpu") if offload else OffloadPolicy()
        self.roots: list[Any] = list(trainable.parts)
        sharded: dict[Tensor, Any] = {}
        for root in self.roots:
            before = dict(root.named_parameters(remove_duplicate=False))
            shard(root, groups, stage, compute, host)
            after = dict(root.named_parameters(remove_duplicate=False))
            sharded |= {whole: after[name] for name, whole in before.items()}
        self.held = [parameter for root in self.roots for parameter in root.parameters()]
        self.optimizer = trainable.optimizer
        for group in self.optimizer.param_groups:
            group["params"] = [sharded[p] for p in group["params"]]
        trainable.together().replaced(dict(sharded))
        self.updated()

    def counts(self, parameter: Tensor) -> bool:
        """Copies of a shard count once."""
        return self.groups.first_replica

    def before(self, index: int, count: int, part: nn.Module | None = None) -> None:
        """Set what the backward of this micro batch does; only the last of a step does everything."""
        last = index == count - 1
        for root in (root for root in self.roots if part in (None, root)):
            if self.stage < 3:
                root.set_reshard_after_backward(last)
            if self.stage == 1:
                root.set_requires_gradient_sync(last)
            else:
                root.set_requires_all_reduce(last)

    def reduced(self) -> None:
        """No whole parameter may outlive the update that changes its shards. A loss scale is divided out of the shards."""
        if not all(isinstance(p, DTensor) for root in self.roots for p in root.parameters()):
            raise AssertionError(
                "whole parameters are kept over an update of their shards: forward would use old values"
            )
        if self.scale is not None:
            torch._foreach_div_([local(p.grad) for p in self.held if p.grad is not None], self.scale.value)

    def updated(self) -> None:
        """Stages 1 and 2: whole parameters for the next step's forward, from the shards as they are now."""
        if self.stage < 3:
            for module in units(*self.roots):
                module.unshard()

    def shards(self) -> list[Tensor]:
        """The shards of all parameters, also while the modules hold whole ones."""
        return self.held

    def held_apart(self) -> Iterator[Tensor]:
        """Shards of gradients before those of the copies are added; there is no public way to them."""
        for module in units(*self.roots):
            for group in module._get_fsdp_state()._fsdp_param_groups:
                if group._partial_reduce_output is not None:
                    yield group._partial_reduce_output


def units(*roots: Any) -> Iterator[FSDPModule]:
    """The modules whose parameters travel together, each root before what is inside it."""
    return (module for root in roots for module in root.modules() if isinstance(module, FSDPModule))


def shard(loss: Any, groups: Groups, stage: int, compute: MixedPrecisionPolicy, offload: OffloadPolicy) -> Any:
    """Make each layer, and all that is outside the layers, a unit whose parameters are gathered and reduced together.

    Gradients are summed, never averaged: the step divides by the labels of all ranks.
    """
    settings: dict[str, Any] = {"mesh": groups.device_mesh, "reshard_after_forward": stage == 3}
    settings |= {"mp_policy": compute, "offload_policy": offload}
    for layer in loss.model.layers:
        fully_shard(layer, **settings)
    root: Any = fully_shard(loss, **settings)
    # Backward gathers ahead by the order of forwards, which is wrong where several micro batches are in flight: name it.
    order = [*reversed(list(loss.model.layers)), root]
    for module, ahead in pairwise([root, *order]):
        module.set_modules_to_backward_prefetch([ahead])
    for module in units(root):
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)
    if compute.param_dtype is not None:
        keep_float32(root)
    return root


def keep_float32(root: Any) -> None:
    """Gather vectors unrounded, and make every gradient in float32, as `MasterWeights` does on one process.

    The sharding knows one format a group; each of its parameters asks `init_dtype_attrs` for its own.
    """
    vectors = MixedPrecisionPolicy(reduce_dtype=torch.float32)
    for parameter in parameters_of(root):
        if parameter.sharded_param.dim() == 1:
            parameter.init_dtype_attrs = partial(_without_argument, parameter.init_dtype_attrs, vectors)
    for module in units(root):
        module.unshard()
        module.reshard()
    for parameter in parameters_of(root):
        if parameter.sharded_param.requires_grad:
            parameter.unsharded_param.grad_dtype = torch.float32


def _without_argument(function: Any, value: Any, _: Any) -> None:
    function(value)


def parameters_of(root: Any) -> Iterator[Any]:
    """What the sharding keeps for each parameter; there is no public way to it."""
    for module in units(root):
        for group in module._get_fsdp_state()._fsdp_param_groups:
            yield from group.fsdp_params
