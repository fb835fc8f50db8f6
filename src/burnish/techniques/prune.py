"""Structured pruning: whole channels, key-value groups and layers of a model are taken out, and what is left is smaller.

Idea    Ma et al. 2023, "LLM-Pruner" (arXiv 2305.11627): parts that only serve each other go together. A feed-forward channel
        is a row of gate and up and a column of down; a group is a key-value head, its rows of k and v, with the query heads
        that read it, their rows of q and columns of o; a layer is both of its residual sums. Which go is decided by an
        importance: the weights' norm, mean activations, or the loss's first-order change (Molchanov et al. 2019,
        arXiv 1906.10771). Muralidharan et al. 2024, "Minitron" (arXiv 2407.14679), has all of it at scale.
Gain    parameters, bytes, FLOPs, and with every reader: the folder is an ordinary one of its family, with smaller sizes.
Price   quality: a pruned model is trained on, from its folder (`train.init`). Samples are read once, with activation or
        first-order importance.
Limits  a config says one width for all layers, so each keeps as many channels and groups; only which ones is its own.
        Experts stay whole: their layers lose groups, or go. The configs of GPT-2 and of encoders have no size of a head: their
        heads stay.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import Field, field_validator, model_validator

from burnish.errors import BudgetNotMet, UserError
from burnish.mesh import Mesh
from burnish.pruned_sizes import (
    Rounding,
    Sizes,
    along,
    exact,
    kept,
    legal_groups,
    parameters_of,
    pruned_work,
    sizes_of,
    token_flops,
)
from burnish.section import Section
from burnish.work import Work

if TYPE_CHECKING:
    from burnish.compress.prune_table import Table
    from burnish.compress.samples import Samples

PARTS = ("layers", "groups", "channels")
WIDTHS = {"float32": 4, "bfloat16": 2, "float16": 2}  # bytes an element of a file
UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
# Operations of the layers that are cut, and of experts, which are not.
KNOWN = {
    *("attention_norm", "q", "k", "v", "q_norm", "k_norm", "rotary", "attention", "o", "attention_sum"),
    *("mlp_norm", "gate", "up", "gated_silu", "activation", "down", "mlp_sum"),
    *("router", "permute", "expert_up", "expert_act", "expert_down", "unpermute"),
}


class Config(Section):
    """`layers`, `groups`, `channels`: shares of them that go, never more than asked for.

    With a target, one of `parameters`, `bytes` and `flops`, they say in which proportion parts give until it is met. A target
    up to 1 is a share of the whole model's, above it a count; bytes are those of weights in `file_dtype`, FLOPs those of a token's
    matrix products. `multiple`: kept channels are one of it. `even_heads`: query heads still divide the hidden size, which
    transformers asks of a Llama. `rows` of samples are read at a time.
    """

    channels: float = Field(default=0.3, ge=0, lt=1)
    groups: float = Field(default=0.0, ge=0, lt=1)
    layers: float = Field(default=0.0, ge=0, lt=1)
    parameters: float | None = Field(default=None, gt=0)
    bytes: float | None = Field(default=None, gt=0)
    flops: float | None = Field(default=None, gt=0)
    importance: Literal["norm", "activation", "first-order"] = "activation"
    multiple: int = Field(default=8, ge=1, le=1024)
    even_heads: bool = True
    rows: int = Field(default=4, ge=1)
    file_dtype: Literal["float32", "bfloat16", "float16"] = "float32"

    @field_validator("bytes", mode="before")
    @classmethod
    def _size(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        number, _, unit = value.strip().partition(" ")
        try:
            return float(number) * UNITS[unit.strip()] if unit else float(number)
        except (KeyError, ValueError):
            raise ValueError('a size is a number of bytes, a share up to 1, or text such as "3 MiB"') from None

    @model_validator(mode="after")
    def _asks(self) -> Config:
        if len(targets := [name for name in ("parameters", "bytes", "flops") if getattr(self, name)]) > 1:
            raise ValueError(f"{' and '.join(targets)} are both targets; one decides")
        if not any(self.shares):
            raise ValueError("nothing would go: give a share of channels, groups or layers above 0")
        return self

    @property
    def shares(self) -> tuple[Fraction, Fraction, Fraction]:
        """Of layers, groups and channels, as they are written."""
        return exact(self.layers), exact(self.groups), exact(self.channels)

    @property
    def rounding(self) -> Rounding:
        """How counts are rounded."""
        return Rounding(self.multiple, self.even_heads)

    @property
    def target(self) -> str:
        """The name of the target, or nothing."""
        return next((name for name in ("parameters", "bytes", "flops") if getattr(self, name) is not None), "")


def check(config: Config, work: Work, mesh: Mesh) -> None:
    """Raises UserError for a model that is not cut here, a share that would take nothing, and a model of several ranks;
    BudgetNotMet for a target that is out of reach."""
    if np.any(mesh.world > 1):
        raise UserError(f"techniques.prune: a model is pruned on one rank, not on {mesh.world}; train, then prune")
    names = {op.name for block in work.blocks if block.entering is not None for op in block.ops}
    if foreign := sorted(names - KNOWN):
        raise UserError(
            f"techniques.prune: {foreign[0]!r} is no part that is cut here; decoders and encoders of attention are"
        )
    whole = sizes_of(work)
    if config.channels and not whole.channels:
        raise UserError("techniques.prune.channels: experts stay whole; set channels=0, and groups or layers above 0")
    embeddings = next(len(op.shapes) for block in work.blocks for op in block.ops if op.name == "embed")
    if config.groups and embeddings > 1:
        raise UserError(
            "techniques.prune.groups: GPT-2's and encoders' configs have no size of a head: all heads stay; set groups=0"
        )
    if config.target:
        decide(config, work)
        return
    for name, ask in zip(PARTS, config.shares, strict=True):
        left = getattr(kept(whole, config.shares, config.rounding), name)
        if ask and left == (there := getattr(whole, name)):
            raise UserError(
                f"techniques.prune.{name} {float(ask):g} of {there} takes none out; {_more(config, whole, name)}"
            )


def _more(config: Config, whole: Sizes, name: str) -> str:
    """Which shares of a part take something out."""
    there = getattr(whole, name)
    step = config.multiple if name == "channels" else 1
    left = legal_groups(whole, config.rounding) if name == "groups" else [*range(step, there, step)]
    takes = [f"{_above(there - n, there):g}" for n in left[::-1] if n < there][:3]
    return f"shares that do: {', '.join(takes)}" if takes else f"set {name}=0"


def _above(part: int, whole: int) -> float:
    """part / whole, rounded up to three digits: a share just below it would take less."""
    return -(-1000 * part // whole) / 1000


def decide(config: Config, work: Work) -> Sizes:
    """What stays of the model that `work` describes. Raises BudgetNotMet, with the least there is, for a target out of reach."""
    whole = sizes_of(work)
    if not config.target:
        return kept(whole, config.shares, config.rounding)
    asked = float(getattr(config, config.target))
    limit = asked * cost(config, work) if asked <= 1 else asked
    way = list(along(whole, config.shares, config.rounding))

    def given(sizes: Sizes) -> float:
        return -cost(config, pruned_work(work, sizes))

    # Each step gives no less than the one before it.
    if (at := bisect_left(way, -limit, key=given)) < len(way):
        return way[at]
    least = -given(way[-1])
    raise BudgetNotMet(
        f"techniques.prune.{config.target} {asked:g}: {limit:,.0f} is out of reach when layers, groups and channels give as "
        f"{config.layers:g} : {config.groups:g} : {config.channels:g}; the least there is: {least:,.0f}"
    )


def cost(config: Config, work: Work) -> float:
    """What the target counts: parameters, bytes of weights, or a token's FLOPs."""
    if config.target == "flops":
        return token_flops(work)
    return parameters_of(work) * (WIDTHS[config.file_dtype] if config.target == "bytes" else 1)


def predict(config: Config, work: Work, mesh: Mesh, table: Table | None = None) -> Work:
    """The work of the smaller model. Without a table the last layers are taken to go, which matters where only some see a
    window."""
    if table is None:
        return pruned_work(work, decide(config, work))
    table.check_config(config.model_dump(mode="json"))
    return pruned_work(work, decide(config, work), table.numbers)


def search(
    config: Config,
    model: Any,
    samples: Samples | None,
    state: Path | None = None,
    told: Callable[[int, int], None] | None = None,
) -> Table:
    """Which parts of a model stay; `samples` is what it will read, None for importance by norm.

    There is nothing to go on from and one step to tell of. Raises UserError as `check` and `compress.importance` do.
    """
    from burnish.compress.prune_model import choose, refuse_others
    from burnish.describe import Shapes, describe
    from burnish.encoders.config import EncoderConfig
    from burnish.encoders.describe import describe_encoder

    shape, one = refuse_others(model), Shapes(1, 1)
    work = describe_encoder(shape, one) if isinstance(shape, EncoderConfig) else describe(shape, one)
    check(config, work, Mesh())
    read = None if config.importance == "norm" else samples
    table = choose(model, read, decide(config, work), config.importance, config.rows, config.model_dump(mode="json"))
    if told is not None:
        told(1, 1)
    return table


def apply(config: Config, model: Any, mesh: Mesh, table: Table | None = None) -> Any:
    """A smaller model, whose `shape` is its config; `model` stays as it is. `table` None: chosen by norm.

    Raises UserError for a table of another model or other settings, for none where the importance reads samples, and for a
    trainable: its optimizer's state would be that of weights that are gone.
    """
    from burnish.compress.fingerprint import model_fingerprint
    from burnish.compress.prune_model import cut

    if hasattr(model, "parts"):
        raise UserError("techniques.prune: prune a model, save it, and train on from its folder with train.init")
    table = search(config, model, None) if table is None else table
    table.check(model_fingerprint(model), config.model_dump(mode="json"))
    return cut(model, table)
