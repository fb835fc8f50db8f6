"""Scales of a model's 8-bit products: those of weights, found once a step, and with delayed scaling those of all that a
step multiplies, from the largest magnitudes of the steps before (Micikevicius et al. 2022, arXiv 2209.05433, section 3).

A scale changes between steps only. So micro batches share it, in whatever order a pipeline takes them, and a second forward
of a checkpointed layer casts as the first did: what it adds to a running maximum is there already.

Shape letters: T tensors (an input or a gradient of a linear layer each), W weights, L steps that are looked back on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from burnish.errors import UserError
from burnish.groups import local
from burnish.ops.fp8_cast import largest, scale_of, scale_to

Step = Callable[..., Any]


class Kept(NamedTuple):
    """Where a matrix's weight stands, and the format it is multiplied in before it is cast."""

    number: int
    dtype: torch.dtype


@dataclass(frozen=True)
class Looking:
    """How far delayed scaling looks back, in steps, and whether only the latest of them counts."""

    steps: int = 1024
    latest: bool = False


class Scales:
    """`forms` names every tensor of the whole model, on whichever rank it is, with its format; `weights` counts its weights.

    Ranks agree on the largest magnitudes, once a step for all of them together, where there is a `group`.
    """

    def __init__(
        self,
        forms: dict[str, torch.dtype],
        weights: int,
        device: torch.device,
        group: dist.ProcessGroup | None = None,
        looking: Looking | None = None,
    ) -> None:
        self.names = list(forms)
        self.group, self.looking = group, looking
        self.ends = torch.tensor([torch.finfo(form).max for form in forms.values()], device=device)
        self.form = next(iter(forms.values()))  # that of weights, as of inputs
        self.weights = weights
        self.of_weights_W: Tensor | None = None  # none before the first step
        self.scales_T = torch.ones(len(forms), device=device)
        self.seen_T = torch.zeros(len(forms), device=device)
        self.history_LT = torch.zeros(0, len(forms), device=device)

    def delayed(self, number: int, amax: Tensor) -> Tensor:
        """The scale of a tensor whose largest magnitude is `amax`, which later steps hear of; NaN where that is no number."""
        self.seen_T[number] = torch.maximum(self.seen_T[number], amax)
        return self.scales_T[number] + amax * 0.0

    def around(self, parts: Callable[[], Iterable[nn.Module]], step: Step) -> Step:
        """`step` with scales found ahead of it and what it saw kept behind it; a step that fails leaves nothing."""

        def scaled_step(*args: Any) -> Any:
            self.begin(parts())
            try:
                result = step(*args)
            except ArithmeticError:
                self.seen_T.zero_()
                raise
            if self.looking is not None:
                self.end()
            return result

        return scaled_step

    @torch.no_grad()
    def begin(self, parts: Iterable[nn.Module]) -> None:
        """Find the scales of weights as they are now; each rank looks at what it has of them."""
        found = torch.zeros(self.weights, device=self.ends.device)
        for module in (module for part in parts for module in part.modules()):
            kept, weight = getattr(getattr(module, "product", None), "kept", None), getattr(module, "weight", None)
            if isinstance(kept, Kept) and isinstance(weight, Tensor):
                found[kept.number] = largest(local(weight.detach())).to(kept.dtype)
        poison = found * 0.0  # a maximum over ranks may lose a NaN
        self.of_weights_W = scale_of(self._agreed(found), self.form) + poison

    def end(self) -> None:
        """Take what this step saw into the history, and the next step's scales from it.

        A tensor that gave nothing, or no number, leaves its scale as it was, unless an earlier step says more.
        """
        assert self.looking is not None
        finite = torch.where(self.seen_T.isfinite(), self.seen_T, 0.0)
        self.history_LT = torch.cat([self.history_LT, self._agreed(finite).unsqueeze(0)])[-self.looking.steps :]
        amax = self.history_LT[-1] if self.looking.latest else self.history_LT.amax(0)
        self.scales_T = torch.where(amax > 0, scale_to(self.ends, amax), self.scales_T)
        self.seen_T.zero_()

    def _agreed(self, amax: Tensor) -> Tensor:
        if self.group is not None:
            dist.all_reduce(amax, dist.ReduceOp.MAX, group=self.group)
        return amax

    def state_dict(self) -> dict[str, Any]:
        """Names, scales and history, as float32 in hexadecimal: what a checkpoint needs to go on bit for bit."""
        return {"names": self.names, "scales": _text(self.scales_T), "history": [_text(row) for row in self.history_LT]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state_dict`, whatever ranks wrote it. Raises UserError when it is of other matrices."""
        if state["names"] != self.names:
            raise UserError("techniques.fp8: the checkpoint's scales are of other matrices; use its own recipe")
        rows = [_numbers(row) for row in state["history"]]
        self.scales_T = _numbers(state["scales"]).to(self.scales_T.device)
        self.history_LT = torch.stack(rows).to(self.scales_T.device) if rows else self.history_LT[:0]

    def notes(self) -> list[str]:
        """Nothing to say of it."""
        return []


def _text(row: Tensor) -> str:
    return row.cpu().numpy().astype("<f4").tobytes().hex()


def _numbers(text: str) -> Tensor:
    return torch.from_numpy(np.frombuffer(bytes.fromhex(text), dtype="<f4").astype(np.float32))
