"""Plan of a vision recipe: what a step of it takes, found by running the network on sizes alone, without any memory."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from burnish.hardware import Chip
from burnish.records import Plan
from burnish.vision.losses import blank_targets, loss_of
from burnish.vision.networks import build
from burnish.vision.recipe import VisionRecipe
from burnish.vision.sections import Network

FLOAT = 4  # bytes
MOMENTS = 2  # of Adam


def make_plan(recipe: VisionRecipe, machine: Chip, notes: Sequence[str] = ()) -> Plan:
    """What a settled recipe takes on `machine`: parameters, memory by kind, work of a step, and seconds at the least."""
    train = recipe.train
    assert recipe.images.patch is not None
    shape = (train.micro_batch, recipe.network.in_channels, *recipe.images.patch)
    parameters, saved, work = traced(recipe.network, shape)
    rows = train.global_batch
    memory = {
        "memory.parameters": FLOAT * parameters,
        "memory.gradients": FLOAT * parameters,
        "memory.optimizer": MOMENTS * FLOAT * parameters,
        "memory.saved": saved,
    }
    flops = work * rows / train.micro_batch
    predicted = {"parameters": float(parameters), **{key: float(value) for key, value in memory.items()}}
    predicted |= {"memory.peak": float(sum(memory.values())), "flops.step": flops}
    if not recipe.prune.used:  # what is kept is chosen by the trained weights
        predicted["file.bytes"] = float(FLOAT * (parameters + _buffers(recipe.network)))
    if rate := machine.flops.get("fp32"):
        predicted["seconds.step"] = flops / rate
        predicted["images_per_second"] = rows / predicted["seconds.step"]
        notes = (*notes, "step time is a floor: products at this machine's measured rate, nothing for the rest")
    return Plan(
        recipe=recipe.name,
        machine=machine.name,
        batch={
            "steps": train.steps,
            "global_batch": rows,
            "micro_batch": train.micro_batch,
            "images": rows * train.steps,
        },
        predicted=predicted,
        capacity=machine.memory or None,
        fits=predicted["memory.peak"] <= machine.memory if machine.memory else None,
        notes=tuple(notes),
    )


def traced(network: Network, shape: tuple[int, ...]) -> tuple[int, int, float]:
    """Parameters, bytes saved for backward, and FLOPs of forward and backward for images of `shape` [B, C, *patch]."""
    with torch.device("meta"):
        loss = loss_of(network, build(network))
        images, labels = torch.empty(shape), blank_targets(network, shape)
    seen: dict[int, Tensor] = {}  # kept, so that no storage takes the place of another

    def pack(tensor: Tensor) -> Tensor:
        seen.setdefault(tensor.untyped_storage()._cdata, tensor)
        return tensor

    weights = {p.untyped_storage()._cdata for p in loss.parameters()}
    with FlopCounterMode(display=False) as counter:
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            total = loss(images, labels)
        total.backward()
    saved = sum(t.untyped_storage().nbytes() for key, t in seen.items() if key not in weights)
    return sum(p.numel() for p in loss.parameters()), saved, float(counter.get_total_flops())


def forward_flops(model: torch.nn.Module, shape: tuple[int, ...]) -> float:
    """FLOPs of one forward pass on zeros of `shape`."""
    device = next(model.parameters()).device
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(torch.zeros(shape, device=device))
    return float(counter.get_total_flops())


def _buffers(network: Network) -> int:
    with torch.device("meta"):
        return sum(buffer.numel() for buffer in build(network).buffers())
