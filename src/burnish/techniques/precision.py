"""Mixed precision: matrix products in 16 bits, master weights and optimizer state in 32.

Idea    Micikevicius et al. 2018, "Mixed precision training" (arXiv 1710.03740).
Price   a 16-bit copy of the weights beside the 32-bit masters: 18 bytes a parameter within a step where fp32 takes 16.
Gain    half the bytes of every saved activation, and the fast units of accelerators.
Limits  what `HIGH` names stays in 32 bits; fp16 needs a loss scale, because its smallest number is large.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, model_validator

from burnish.mesh import Mesh, N
from burnish.section import Section
from burnish.work import Bytes, Work

if TYPE_CHECKING:
    from torch import nn

    from burnish.train.step import Trainable

MASTER = 4  # bytes a parameter of its float32 master
# Class of a module -> what it computes in float32 whatever its inputs are.
HIGH = {
    "RMSNorm": "mean square and its root",
    "LayerNorm": "mean, variance and its root",
    "Attention": "softmax and its sums",
    "LanguageModelLoss": "softmax over the vocabulary, loss, sum of the head's gradient",
    "ClassificationLoss": "softmax over the classes, loss",
    "Decoder": "rotary angles until they are rounded once",
}


class Config(Section):
    """`compute`: the format of matrix products and saved activations. The others are for fp16.

    `loss_scale` is where the factor on the loss (a sum over tokens) starts; it halves at each overflow and doubles after
    `growth_steps` steps without one.
    """

    compute: Literal["fp32", "bf16", "fp16"] = "fp32"
    loss_scale: float = Field(default=2.0**4, ge=2.0**-16, le=2.0**15)
    growth_steps: int = Field(default=2000, ge=1)

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        return {"compute": value} if isinstance(value, str) else value


def check(config: Config, work: Work, mesh: Mesh) -> None:
    """Every combination is allowed."""


def predict(config: Config, work: Work, mesh: Mesh, table: Any = None) -> Work:
    """The work with 16-bit matrices and activations, fp32 vectors and gradients, masters among the optimizer's state."""
    if config.compute == "fp32":
        return work
    size = work.bytes
    half = replace(
        size,
        parameter=2,
        compute=2,
        gradient=4,
        optimizer=size.optimizer + MASTER,
        activation=2,
        rounded=2,
        widened=4,
    )
    return replace(work, bytes=half, gathered=work.gathered + vector_bytes(replace(work, bytes=half)))


def vector_bytes(work: Work) -> N:
    """Bytes that vectors take beyond those of a 16-bit parameter, since they stay in float32."""
    if not isinstance(work.bytes.rounded, int) or not work.bytes.rounded:
        return 0
    return (MASTER - work.bytes.parameter) * sum(n * shape[0] for n, shape in work.shapes() if len(shape) == 1)


def masters_as_parameters(size: Bytes) -> Bytes:
    """The same bytes where shards of the parameters are the masters, and a 16-bit copy exists only while gathered."""
    return size if size.parameter == MASTER else replace(size, parameter=MASTER, optimizer=size.optimizer - MASTER)


def apply(config: Config, trainable: Trainable, mesh: Mesh, table: Any = None) -> Trainable:
    """Cast the parameters in place and put the optimizer on float32 masters; fp16 gets its loss scale.

    A technique that keeps whole parameters itself takes them back with `trainable.optimizer.release()`.
    """
    if config.compute == "fp32":
        return trainable
    import torch

    from burnish.ops.master_weights import LossScale, MasterWeights

    assert isinstance(trainable.optimizer, torch.optim.AdamW)
    half = config.compute == "fp16"
    scale = LossScale(value=config.loss_scale, interval=config.growth_steps) if half else None
    dtype = torch.float16 if half else torch.bfloat16
    trainable.optimizer = MasterWeights(trainable.optimizer, trainable.parts, dtype, scale)
    if scale is not None:
        trainable.step = scale.guarded(trainable.step)
        trainable.carried["loss_scale"] = scale
    return trainable


def kept_high(model: nn.Module) -> list[str]:
    """What stays in float32 although `model` has 16-bit parameters, one line a kind of module, by name."""
    lines = ["masters of all parameters, their gradients and both moments"]
    for name, module in model.named_modules():
        if what := HIGH.get(type(module).__name__):
            lines.append(f"{_every(name) or 'the whole'}: {what}")
    for name, parameter in model.named_parameters():
        if parameter.is_floating_point() and parameter.element_size() > 2:
            lines.append(f"{_every(name)}: as it is")
    return list(dict.fromkeys(lines))


def _every(name: str) -> str:
    """A dotted name with its numbers as stars: one line for all layers."""
    return re.sub(r"[.]\d+", ".*", name)
