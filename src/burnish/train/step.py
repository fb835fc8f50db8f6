"""One optimizer step: accumulate gradients over micro batches, clip, update; what is not finite is not applied."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from burnish.data.batch import Batch
from burnish.errors import UserError
from burnish.train.loss import batch_tensors


@dataclass(frozen=True)
class StepResult:
    """`loss` in nats per label, before the update; `tokens` counts inputs; `grad_norm` is before clipping."""

    loss: float
    labels: int
    tokens: int
    grad_norm: float


class NonFiniteError(ArithmeticError):
    """A loss or gradient norm that is not finite. The parameters and the optimizer are as before the step."""

    def __init__(self, loss: float, grad_norm: float) -> None:
        super().__init__(f"loss {loss}, gradient norm {grad_norm}")
        self.loss = loss
        self.grad_norm = grad_norm


Step = Callable[[list[Batch], float], StepResult]


@dataclass
class Trainable:
    """What techniques rewrite: modules, optimizer, and `step(micro batches, lr)`, which makes one optimizer step.

    `parts[0]` gives the summed loss of a batch, as `LanguageModelLoss` does.
    """

    parts: list[nn.Module]
    optimizer: torch.optim.Optimizer
    step: Step


def plain_trainable(loss: nn.Module, optimizer: torch.optim.Optimizer, clip: float) -> Trainable:
    """One process, one part, whole gradients. `clip` is the largest gradient norm, 0 for none."""
    return Trainable([loss], optimizer, plain_step(loss, optimizer, clip))


def plain_step(loss: nn.Module, optimizer: torch.optim.Optimizer, clip: float) -> Step:
    """The step of one process over `loss`, a module that gives the summed loss of a batch.

    The loss of a step is the sum of token losses over the number of counted labels in all its micro batches, so that
    how rows fall into micro batches changes nothing but rounding. A step without any label changes nothing.
    """

    def step(micros: list[Batch], lr: float) -> StepResult:
        labels = sum(batch.label_count for batch in micros)
        tokens = sum(batch.ids.size for batch in micros)
        if labels == 0:
            return StepResult(loss=0.0, labels=0, tokens=tokens, grad_norm=0.0)
        try:
            total = backward(loss, micros)
            if not optimizer.state:
                refuse_untouched(loss)
            gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
            grad_norm = norm(gradients).item() / labels
            if not math.isfinite(total) or not math.isfinite(grad_norm):
                raise NonFiniteError(total / labels, grad_norm)
            scale_(gradients, clip_factor(grad_norm, clip) / labels)
            for group in optimizer.param_groups:
                group["lr"] = lr
            optimizer.step()
        finally:
            optimizer.zero_grad(set_to_none=True)
        return StepResult(total / labels, labels, tokens, grad_norm)

    return step


def backward(loss: nn.Module, micros: Iterable[Batch]) -> float:
    """Add the gradients of the summed loss of every micro batch that counts a label; returns that sum in nats."""
    device = next(loss.parameters()).device
    total = torch.zeros((), dtype=torch.float64, device=device)
    for batch in micros:
        if batch.label_count:
            part = loss(*batch_tensors(batch, device))
            part.backward()
            total += part.detach()
    return total.item()


def norm(gradients: list[Tensor]) -> Tensor:
    """Euclidean norm over all gradients, float32 at least.

    Row by row first: one running float32 sum over a whole embedding loses the third digit.
    """
    norms = []
    for gradient in gradients:
        wide = torch.promote_types(gradient.dtype, torch.float32)
        norms.append(torch.linalg.vector_norm(torch.linalg.vector_norm(gradient, dim=-1, dtype=wide)))
    return torch.linalg.vector_norm(torch.stack(norms))


def clip_factor(grad_norm: float, largest: float) -> float:
    """Factor that brings gradients of norm `grad_norm` to at most `largest` (Pascanu et al. 2013, algorithm 1)."""
    return min(1.0, largest / (grad_norm + 1e-6)) if largest > 0 else 1.0


def scale_(gradients: list[Tensor], factor: float) -> None:
    """Multiply every gradient in place."""
    torch._foreach_mul_(gradients, factor)


def refuse_untouched(module: nn.Module) -> None:
    """Raise UserError naming the trainable parameters that a backward pass has left without a gradient."""
    untouched = [name for name, p in module.named_parameters() if p.requires_grad and p.grad is None]
    if untouched:
        more = f" and {len(untouched) - 3} more" if len(untouched) > 3 else ""
        raise UserError(
            f"no gradient reaches {', '.join(untouched[:3])}{more}: trainable, but not part of the loss; "
            "freeze it (requires_grad_(False)) or use it"
        )
