"""One optimizer step: accumulate gradients over micro batches, clip, update; what is not finite is not applied."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn

from burnish.data.batch import Batch
from burnish.errors import UserError
from burnish.groups import local, make_groups
from burnish.mesh import Mesh
from burnish.ops.together import Member, Together, check_same_weights
from burnish.placement import Placement
from burnish.train.loss import batch_tensors
from burnish.train.optim import begun


@dataclass(frozen=True)
class StepResult:
    """`loss` in nats per label, before the update; `tokens` counts inputs; `grad_norm` is before clipping."""

    loss: float
    labels: int
    tokens: int
    grad_norm: float


class NonFiniteError(ArithmeticError):
    """A loss or gradient norm that is not finite. The parameters and the optimizer are as before the step.

    `result` is what the step would have given.
    """

    def __init__(self, loss: float, grad_norm: float, result: StepResult | None = None) -> None:
        super().__init__(f"loss {loss}, gradient norm {grad_norm}")
        self.loss = loss
        self.grad_norm = grad_norm
        self.result = result


Step = Callable[[list[Batch], float], StepResult]


class Ranks(Protocol):
    """What a step does together with the other ranks that hold the same model; called by every rank, in this order."""

    alone: bool  # no other rank waits for this one: a micro batch without labels may be left out
    axes: dict[str, str]  # process group name -> mesh axis, for whoever records collectives

    def before(self, index: int, count: int, part: nn.Module | None = None) -> None:
        """Micro batch `index` of `count` is about to run; where `part` is given, its backward through that part."""

    def reduced(self) -> None:
        """The last backward is over: from here on gradients are those of all ranks, each rank holding its part."""

    def share(self, loss: float, labels: int, tokens: int, norm: float) -> tuple[float, int, int, float]:
        """Sums over ranks, and the norm of the whole gradient from the norm of this rank's part."""
        ...

    def updated(self) -> None:
        """The update is done, or was left out."""

    def counts(self, parameter: Tensor) -> bool:
        """Whether this rank's part of a parameter's gradient is counted in its norm; what several hold counts once."""
        ...

    def shards(self) -> Iterable[Tensor]:
        """Parameters beside those that the modules hold, for whoever counts them."""
        ...

    def held_apart(self) -> Iterable[Tensor]:
        """Gradients between micro batches that are not in `.grad`, for whoever counts them."""
        ...


class Alone:
    """One process: nothing to share."""

    alone = True

    def __init__(self) -> None:
        self.axes: dict[str, str] = {}

    def before(self, index: int, count: int, part: nn.Module | None = None) -> None: ...

    def reduced(self) -> None: ...

    def share(self, loss: float, labels: int, tokens: int, norm: float) -> tuple[float, int, int, float]:
        return loss, labels, tokens, norm

    def updated(self) -> None: ...

    def counts(self, parameter: Tensor) -> bool:
        return True

    def shards(self) -> Iterable[Tensor]:
        return ()

    def held_apart(self) -> Iterable[Tensor]:
        return ()


class Carried(Protocol):
    """What a technique keeps from step to step beside tensors; a checkpoint holds it, as values that JSON knows."""

    def state_dict(self) -> dict[str, float]: ...

    def load_state_dict(self, state: dict[str, float]) -> None: ...

    def notes(self) -> list[str]:
        """What the records of a run should say of it at the end."""
        ...


class Engine(Protocol):
    """Runs the parts of a pipeline stage: a module that gives the summed loss of a batch on every stage, for judging."""

    def run(self, micros: Sequence[Any], ranks: Ranks) -> float:
        """As `backward`, over the tensors of each micro batch; 0 where another stage has the loss."""
        ...

    def __call__(self, *tensors: Any) -> Tensor: ...


@dataclass
class Trainable:
    """What techniques rewrite: modules, optimizer, and `step(micro batches, lr)`, which makes one optimizer step.

    `parts[0]` gives the summed loss of a batch, as `LanguageModelLoss` does, unless there is an `engine`, which runs parts of
    a model that other ranks have the rest of. `ranks` is read by `step` as it runs.
    """

    parts: list[nn.Module]
    optimizer: torch.optim.Optimizer
    step: Step
    ranks: Ranks = field(default_factory=Alone)
    engine: Engine | None = None
    carried: dict[str, Carried] = field(default_factory=dict)  # by a name of its own
    placements: dict[str, Placement] = field(default_factory=dict)  # of what is not whole under its own name

    def together(self, mesh: Mesh = Mesh()) -> Together:  # noqa: B008 - frozen
        """The ranks of `mesh`, started with this one; from then on a step is one of all of them.

        Raises UserError when other ranks were started, or they start from different weights.
        """
        if not isinstance(self.ranks, Together):
            device = next(self.parts[0].parameters()).device
            self.ranks = Together(make_groups(mesh, device), device)
            check_same_weights(self.parts, self.ranks.groups)
        return self.ranks

    @property
    def scorer(self) -> nn.Module:
        """What gives the summed loss of a batch; with an engine every rank calls it."""
        return self.parts[0] if self.engine is None else cast(nn.Module, self.engine)

    def join(self, member: Member) -> None:
        """Add what a technique does around a step."""
        self.together().members.append(member)


def plain_trainable(loss: nn.Module, optimizer: torch.optim.Optimizer, clip: float) -> Trainable:
    """One process, one part, whole gradients. `clip` is the largest gradient norm, 0 for none."""

    def step(micros: list[Batch], lr: float) -> StepResult:
        return one_step(trainable, clip, micros, lr)

    trainable = Trainable([loss], optimizer, step)
    return trainable


def plain_step(loss: nn.Module, optimizer: torch.optim.Optimizer, clip: float) -> Step:
    """The step of one process over `loss`, a module that gives the summed loss of a batch."""
    return plain_trainable(loss, optimizer, clip).step


def one_step(trainable: Trainable, clip: float, micros: list[Batch], lr: float) -> StepResult:
    """Gradients of all micro batches, clipped to norm `clip` and applied with learning rate `lr`.

    The loss of a step is the sum of token losses over the number of counted labels in all its micro batches on all
    ranks, so that how rows fall into them changes nothing but rounding. A step without any label changes nothing.
    Raises NonFiniteError, on every rank, when the loss or the norm is not finite.
    """
    optimizer, ranks = trainable.optimizer, trainable.ranks
    counted, inputs = sum(batch.label_count for batch in micros), sum(batch.input_count for batch in micros)
    try:
        total = gradients_of(trainable, micros)
        if (counted or not ranks.alone) and not begun(optimizer):
            for module in trainable.parts:
                refuse_untouched(module)
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        gradients = [local(p.grad) for p in parameters if p.grad is not None]
        counted_here = [local(p.grad) for p in parameters if p.grad is not None and ranks.counts(p)]
        part = norm(counted_here).item() if counted_here else 0.0
        total, labels, tokens, whole = ranks.share(total, counted, inputs, part)
        result = StepResult(total / max(labels, 1), labels, tokens, whole / max(labels, 1))
        finite = math.isfinite(result.loss) and math.isfinite(result.grad_norm)
        if labels and finite:
            scale_(gradients, clip_factor(result.grad_norm, clip) / labels)
            for group in optimizer.param_groups:
                group["lr"] = lr
            optimizer.step()
    finally:
        optimizer.zero_grad(set_to_none=True)
    ranks.updated()
    if not finite:
        raise NonFiniteError(result.loss, result.grad_norm, result)
    return result


def gradients_of(trainable: Trainable, micros: list[Batch]) -> float:
    """Add the gradients of the summed loss of every micro batch; returns that sum in nats, as far as this rank has it."""
    if trainable.engine is None:
        return backward(trainable.parts[0], micros, trainable.ranks)
    device = next(trainable.parts[0].parameters()).device
    return trainable.engine.run([batch_tensors(batch, device) for batch in micros], trainable.ranks)


def backward(loss: nn.Module, micros: Sequence[Batch], ranks: Ranks | None = None) -> float:
    """Add the gradients of the summed loss of every micro batch; returns that sum in nats.

    A micro batch that counts no label adds nothing; it is run all the same when other ranks wait for its collectives.
    """
    ranks = Alone() if ranks is None else ranks
    device = next(loss.parameters()).device
    total = torch.zeros((), dtype=torch.float64, device=device)
    for index, batch in enumerate(micros):
        if batch.label_count or not ranks.alone:
            ranks.before(index, len(micros))
            part = loss(*batch_tensors(batch, device))
            part.backward()
            total += part.detach().to(device)  # offloaded parameters are not where the loss is
    ranks.reduced()
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
