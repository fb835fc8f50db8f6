"""The optimizer and its learning rate: fused AdamW, and warm-up followed by one of three schedules."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from burnish.ops.master_weights import MasterWeights
from burnish.recipe import Optim, Schedule


def build_optimizer(model: nn.Module, settings: Optim) -> torch.optim.AdamW:
    """Fused AdamW (Loshchilov and Hutter 2019, algorithm 2) over the trainable parameters of `model`.

    Only matrices and larger decay: a norm's weight or a bias has no scale to keep small. A tied weight is one
    parameter. Raises ValueError when nothing is trainable.
    """
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not trainable:
        raise ValueError("the model has no parameter to train; leave requires_grad on for at least one")
    groups = [
        {"params": [p for p in trainable if p.dim() >= 2], "weight_decay": settings.weight_decay},
        {"params": [p for p in trainable if p.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=settings.lr,
        betas=settings.betas,
        eps=settings.eps,
        fused=True,
    )


def fill_state(optimizer: torch.optim.Optimizer) -> None:
    """Give AdamW its moments and counters now, as its first step would; one over masters fills its own.

    Made in the middle of the first step they land between activations, and the pieces left of the heap then raise the
    peak of every later step. Other optimizers, and one that has begun, are left alone.
    """
    if isinstance(optimizer, MasterWeights):
        optimizer.fill_state()
    if type(optimizer) is not torch.optim.AdamW or optimizer.state:
        return
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            optimizer.state[parameter] = {
                "step": torch.zeros((), dtype=torch.float32, device=parameter.device if group["fused"] else "cpu"),
                "exp_avg": torch.zeros_like(parameter, memory_format=torch.preserve_format),
                "exp_avg_sq": torch.zeros_like(parameter, memory_format=torch.preserve_format),
            }


def begun(optimizer: torch.optim.Optimizer) -> bool:
    """Whether it has taken a step."""
    first: dict[str, Any] = next(iter(optimizer.state.values()), {})
    return bool(first.get("step", 0))


def lr_at(step: int, schedule: Schedule, steps: int, peak: float = 1.0) -> float:
    """Learning rate of step `step` (from 0) in a run of `steps`; a pure function, so resuming needs no state.

    warm-up   peak (step + 1) / (warmup_steps + 1), so that no step is wasted at 0 and the first one after has `peak`
    cosine    from `peak` down to min_lr_ratio peak at the last step (Loshchilov and Hutter 2017, equation 5)
    wsd       `peak`, then straight to min_lr_ratio peak over the last decay_steps (Hu et al. 2024, MiniCPM, section 4)
    constant  `peak`
    """
    if step < schedule.warmup_steps:
        return peak * (step + 1) / (schedule.warmup_steps + 1)
    if schedule.kind == "cosine":
        span = max(steps - 1 - schedule.warmup_steps, 1)
        keep = 0.5 + 0.5 * math.cos(math.pi * min((step - schedule.warmup_steps) / span, 1.0))
    elif schedule.kind == "wsd":
        keep = min(max(steps - 1 - step, 0) / max(schedule.decay_steps, 1), 1.0)
    else:
        keep = 1.0
    return peak * (schedule.min_lr_ratio + (1.0 - schedule.min_lr_ratio) * keep)
