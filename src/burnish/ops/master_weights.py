"""Master weights: 16-bit parameters that take part in the products, updated through float32 copies; loss scaling.

Held between steps, in bytes a parameter: 2 the parameter, 4 its master, 8 AdamW's two moments. Within a step: 4 the
gradient. Each micro batch makes a 16-bit gradient of one parameter at a time, which is widened and added to that.
Vectors (a norm's weights) stay in float32: they stand near 1, where bf16 has no number between 1 and 1.0078 and a
whole training's change would be rounded away; they enter no product, and are few.
(Micikevicius et al. 2018, "Mixed precision training", arXiv 1710.03740, sections 3.1 and 3.2.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

# The gradient that enters the loss is the scale itself, in 16 bits at places: the largest power of two there is.
LARGEST_SCALE = 2.0**15
LEAST_SCALE = 2.0**-16


@dataclass
class LossScale:
    """Factor on the loss that keeps small fp16 gradients from vanishing; gradients are divided by it before use.

    A step whose gradients overflow is left out and halves the factor; `interval` steps in a row that do not double it.
    The loss is a sum over the tokens of a micro batch, which is a scale in itself: with 4,096 of them the first value here
    is the customary 2^16 on a mean, and long micro batches may need one below 1.
    """

    value: float = 2.0**4
    growth: float = 2.0
    backoff: float = 0.5
    interval: int = 2000
    held: int = 0  # steps since the last change
    skipped: int = 0  # steps left out so far
    dividing: list[Any] = field(default_factory=list, repr=False)  # hooks on parameters

    def attach(self, parts: Iterable[nn.Module], parameters: Iterable[Tensor]) -> None:
        """Scale the loss that `parts` give, and divide the gradients that reach `parameters`."""
        for part in parts:
            self.attach_loss(part)
        for parameter in parameters:
            self.dividing.append(parameter.register_hook(self.divide_out))

    def attach_loss(self, part: nn.Module) -> None:
        """Scale the loss that `part` gives."""
        part.register_forward_hook(self._scale_loss)

    def _scale_loss(self, part: nn.Module, given: Any, loss: Tensor) -> None:
        if loss.requires_grad:
            loss.register_hook(lambda grad: grad * self.value)

    def divide_out(self, gradient: Tensor) -> Tensor:
        """A gradient of the scaled loss as that of the loss itself."""
        return gradient / self.value

    def guarded(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """`step` that leaves out an update whose gradients overflow, and reports a norm of 0 for it.

        What is not finite at the least scale, or has a loss that is not finite, is raised as before.
        """

        def guarded_step(*args: Any) -> Any:
            try:
                result = step(*args)
            except ArithmeticError as error:
                attempted = getattr(error, "result", None)
                if attempted is None or not math.isfinite(attempted.loss) or self.value <= LEAST_SCALE:
                    raise
                self.value = max(self.value * self.backoff, LEAST_SCALE)
                self.held, self.skipped = 0, self.skipped + 1
                return replace(attempted, grad_norm=0.0)
            self.held += 1
            if self.held == self.interval:
                self.value, self.held = min(self.value * self.growth, LARGEST_SCALE), 0
            return result

        return guarded_step

    def state_dict(self) -> dict[str, float]:
        """What a checkpoint needs to go on."""
        return {"value": self.value, "held": self.held, "skipped": self.skipped}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Go on from `state_dict`."""
        self.value, self.held, self.skipped = state["value"], int(state["held"]), int(state["skipped"])

    def notes(self) -> list[str]:
        """The steps left out, where there were any."""
        if not self.skipped:
            return []
        return [
            f"fp16: steps skipped because gradients overflowed: {self.skipped}; loss scale at the end {self.value:g}"
        ]


def keep_only(optimizer: torch.optim.Optimizer, parameters: Iterable[Tensor]) -> None:
    """Take all other parameters out of an optimizer that has not stepped, and groups that are empty then."""
    kept = set(parameters)
    for group in optimizer.param_groups:
        group["params"] = [parameter for parameter in group["params"] if parameter in kept]
    optimizer.param_groups[:] = [group for group in optimizer.param_groups if group["params"]]


class MasterWeights(torch.optim.Optimizer):
    """AdamW over float32 masters of 16-bit parameters; state by parameter: master, step, exp_avg, exp_avg_sq.

    Casts every matrix and larger parameter of `parts` to `dtype` in place: tied ones stay tied, vectors and buffers stay
    as they are. Gradients are float32. `scale` is the loss scale of fp16, None for bf16.
    """

    def __init__(
        self, inner: torch.optim.AdamW, parts: list[nn.Module], dtype: torch.dtype, scale: LossScale | None = None
    ) -> None:
        super().__init__([dict(group) for group in inner.param_groups], inner.defaults)
        self.inner, self.dtype, self.scale = inner, dtype, scale
        # Masters wait here until the first step: an optimizer without state is one that has not stepped.
        self._whole: dict[Tensor, Tensor] = {}
        for parameter in (p for part in parts for p in part.parameters() if p.is_floating_point()):
            self._whole[parameter] = parameter.data
            # A vector gets a master too, so that every parameter has the same state.
            parameter.data = parameter.data.to(dtype) if parameter.dim() > 1 else parameter.data.clone()
            if parameter.requires_grad:
                parameter.grad_dtype = torch.float32
        if scale is not None:
            scale.attach(parts, [p for p in self._whole if p.requires_grad])

    def release(self) -> torch.optim.AdamW:
        """Undo the cast, before any step, and give back the optimizer of the whole parameters. `scale` still scales the
        loss; whoever goes on divides it out of the gradients."""
        if self.state:
            raise RuntimeError("master weights are given back before the first step only")
        for parameter, whole in self._whole.items():
            parameter.data = whole
        self._whole.clear()
        if self.scale is not None:
            for hook in self.scale.dividing:
                hook.remove()
        return self.inner

    def keep(self, parameters: Iterable[Tensor]) -> None:
        """Forget all other parameters, before the first step: another rank has them."""
        kept = set(parameters)
        self._whole = {parameter: whole for parameter, whole in self._whole.items() if parameter in kept}
        for optimizer in (self, self.inner):
            keep_only(optimizer, kept)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update the masters from the float32 gradients and round them into the parameters."""
        self.fill_state()
        for group in self.param_groups:
            if parameters := [p for p in group["params"] if p.grad is not None]:
                self._update(group, parameters)
                self._copy_back(parameters)

    def fill_state(self) -> None:
        """Masters, moments and counters of every parameter that has none yet."""
        for parameter in (p for group in self.param_groups for p in group["params"]):
            state = self.state[parameter]
            if "master" not in state:
                master = state["master"] = self._whole[parameter]
                state["step"] = torch.zeros((), dtype=torch.float32, device=master.device)
                state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(master), torch.zeros_like(master)
        self._whole.clear()

    def _update(self, group: dict[str, Any], parameters: list[Tensor]) -> None:
        states = [self.state[p] for p in parameters]
        beta1, beta2 = group["betas"]
        adamw(
            [state["master"] for state in states],
            [p.grad for p in parameters if p.grad is not None],
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            [state["step"] for state in states],
            fused=group["fused"],
            foreach=group["foreach"],
            amsgrad=False,
            beta1=beta1,
            beta2=beta2,
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=group["maximize"],
        )

    def _copy_back(self, parameters: list[Tensor]) -> None:
        torch._foreach_copy_(parameters, [self.state[p]["master"] for p in parameters])
