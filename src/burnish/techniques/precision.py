"""Mixed precision: matrix products in 16 bits, master weights and optimizer state in 32.

Idea    Micikevicius et al. 2018, "Mixed precision training" (arXiv 1710.03740).
Price   a 16-bit copy of the weights beside the 32-bit masters.
Gain    half the bytes of every saved activation, and the fast units of accelerators.
Limits  norm statistics, the softmax and the loss stay in 32 bits.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from pydantic import model_validator

from burnish.mesh import Mesh
from burnish.section import Section
from burnish.work import Work, shard_elements

if TYPE_CHECKING:
    from burnish.train.step import Trainable

PLAN_ONLY = True


class Config(Section):
    """`compute`: the format of matrix products and saved activations."""

    compute: Literal["fp32", "bf16", "fp16"] = "fp32"

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        return {"compute": value} if isinstance(value, str) else value


def check(config: Config, work: Work, mesh: Mesh) -> None:
    """Every combination is allowed."""


def predict(config: Config, work: Work, mesh: Mesh, table: Any = None) -> Work:
    """The work with 16-bit activations and a 16-bit copy of the parameters beside the fp32 masters."""
    if config.compute == "fp32":
        return work
    half = replace(work.bytes, activation=2, compute=2)
    copy = sum(n * half.compute * shard_elements(shape, 1) for n, shape in work.shapes())
    return replace(work, bytes=half, gathered=copy)


def apply(config: Config, trainable: Trainable, mesh: Mesh, table: Any = None) -> Trainable:
    """Planned only: `train` refuses a recipe that needs it."""
    raise AssertionError("a planned technique is refused before it is applied")
