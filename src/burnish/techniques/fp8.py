"""FP8 mixed precision: the products of linear layers in 8-bit floats, everything else as it was.

Idea    Micikevicius et al. 2022, "FP8 formats for deep learning" (arXiv 2209.05433): E4M3 for inputs and weights, E5M2, which
        reaches further, for gradients; a factor brings each tensor to the end of its format before it is rounded. All three
        products of a layer: y = x W^T, dx = g W, dW = g^T x.
        `current`: one factor a tensor, from the tensor itself. `delayed`: from the largest magnitude of the steps before,
        as the paper has it. `block`: one for each 1 x 128 of activations and gradients and each 128 x 128 of weights,
        powers of two, E4M3 throughout (DeepSeek-AI 2024, arXiv 2412.19437, section 3.3).
Gain    one byte an element for the input that a matrix keeps for backward; twice the rate of 16-bit units, where there are
        such units.
Price   a pass over each tensor for its largest magnitude and one to cast it, which narrow layers do not earn back. Ranks that
        divide a tensor agree on its largest magnitude: a number a matrix on the `tp` axis; weights, and delayed scaling, once
        a step for all together. What attention gives is kept twice, as it is and as `o` reads it.
Limits  the sizes of a matrix, as a rank holds it, must be multiples of 16, which accelerators ask for and is asked for
        everywhere; tokens are padded with zeros. Embedding, head, norms, attention, loss, masters and optimizer stay high.
        Block scaling is emulated on every device.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from fnmatch import fnmatchcase
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import Field, model_validator

from burnish.errors import UserError, nearest
from burnish.mesh import Mesh, N
from burnish.section import Section
from burnish.techniques.lora import MATRICES, TOGETHER
from burnish.work import (
    BACKWARD,
    COLUMN,
    FORWARD,
    QUANTISED,
    ROW,
    STATISTIC,
    STEP,
    TOKENS,
    WHOLE,
    Block,
    Comm,
    Op,
    Saved,
    Work,
)

if TYPE_CHECKING:
    from burnish.train.step import Trainable

TILE = 16  # what the units of accelerators ask of both sizes of a matrix, as in ops/fp8_product.py
SIDE = 128  # of a block, as in ops/fp8_cast.py
READS = (*TOGETHER, ("o",), ("down",))  # matrices that read one tensor
SCALE = 4  # bytes of a factor, and of a largest magnitude
ENGINE = "transformer-engine"


class Config(Section):
    """`targets`: patterns of matrices such as `attention.*` or `q`, none for all; `without`: those that stay high.

    `gradients` None: e5m2, and e4m3 with blocks. Delayed scaling looks back `history` steps, for the largest magnitude (`max`)
    or the latest. `products`: what makes them; auto takes the device's units if it has them, else emulates them.
    """

    scaling: Literal["current", "delayed", "block"] = "current"
    gradients: Literal["e5m2", "e4m3"] | None = None
    history: int = Field(default=1024, ge=1)
    amax: Literal["max", "latest"] = "max"
    targets: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    products: Literal["auto", "scaled_mm", "emulated", "transformer-engine"] = "auto"

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        return {"scaling": value} if isinstance(value, str) else value

    @property
    def gradient_form(self) -> str:
        """The format of gradients."""
        return self.gradients or ("e4m3" if self.scaling == "block" else "e5m2")

    def __str__(self) -> str:
        return f"E4M3, gradients {self.gradient_form.upper()}, {self.scaling} scaling"


def check(config: Config, work: Work, mesh: Mesh) -> None:
    """Raises UserError for a pattern that names no matrix, for sizes that accelerators refuse, for products that cannot be
    made here."""
    ops = {op.name: op for block in work.blocks for op in block.ops if np.any(block.layers)}
    known = [module for name, module in MATRICES.items() if name in ops]
    for pattern in (*config.targets, *config.without):
        if not any(_fits(module, pattern) for module in known):
            last = [module.split(".")[-1] for module in known]
            raise UserError(f"techniques.fp8: no matrix {pattern!r}; {nearest(pattern, [*known, *last])}")
    if not (names := chosen(config, ops)):
        raise UserError(
            "techniques.fp8: no matrix is left to multiply in 8 bits; leave techniques.fp8 out, or name fewer"
        )
    for name in names:
        refuse_odd(name, ops[name], mesh)
    if config.scaling == "block" and config.products == "scaled_mm":
        raise UserError("techniques.fp8.products scaled_mm takes one scale a tensor; use emulated or auto with blocks")
    if config.products == ENGINE:
        refuse_engine()


def refuse_odd(name: str, op: Op, mesh: Mesh) -> None:
    """Raises UserError where a size of a matrix is no multiple of what the units ask for."""
    outputs, inputs = op.shapes[0]
    for size, what in ((outputs, "outputs"), (inputs, "inputs")):
        if np.any(np.asarray(size) % TILE):
            divided = op.split == (COLUMN if what == "outputs" else ROW) and np.any(np.asarray(mesh.tp) > 1)
            near = int(np.max(size)) // TILE * TILE
            right = f"{near} or {near + TILE}" if near else f"{TILE}"
            raise UserError(
                f"techniques.fp8: {MATRICES[name]} has {size} {what}{' on a rank' if divided else ''}, and 8-bit products take "
                f"multiples of {TILE}; use {right}{', or a smaller parallel.tp' if divided else ''}, or "
                f'techniques.fp8.without=["{name}"]'
            )


def refuse_engine() -> None:
    """Raises UserError: Transformer Engine is looked for, and no product is made with it."""
    found = find_spec("transformer_engine") is not None
    said = "is installed, but no product here is made with it yet" if found else "is not installed"
    raise UserError(f"techniques.fp8.products: {ENGINE} {said}; use auto, scaled_mm or emulated")


def _fits(module: str, pattern: str) -> bool:
    return fnmatchcase(module, pattern) or fnmatchcase(module.rpartition(".")[2], pattern)


def chosen(config: Config, names: Iterable[str]) -> list[str]:
    """The operations among `names` that are made in 8 bits, in the order of a layer."""
    found = {name: module for name, module in MATRICES.items() if name in names}
    kept = [n for n, module in found.items() if not config.targets or any(_fits(module, t) for t in config.targets)]
    return [name for name in kept if not any(_fits(found[name], pattern) for pattern in config.without)]


def predict(config: Config, work: Work, mesh: Mesh, table: Any = None) -> Work:
    """The work with 8-bit inputs kept for backward, and what ranks tell one another of largest magnitudes.

    Parameters, gradients, optimizer and FLOPs are as before.
    """

    def edit(block: Block) -> Block:
        return replace(block, ops=tuple(_ops(config, block, work, mesh))) if block.entering else block

    return replace(work.edit(edit), comms=(*work.comms, *_of_step(config, work, mesh)))


def _of_step(config: Config, work: Work, mesh: Mesh) -> list[Comm]:
    """Largest magnitudes of weights, and of what a step multiplied where the next ones are scaled by it, of all ranks."""
    there = (mesh.world > 1) * 1
    matrices: N = 0
    inputs: N = 0
    for block in work.blocks:
        names = chosen(config, [op.name for op in block.ops])
        matrices = matrices + block.layers * len(names)
        inputs = inputs + block.layers * sum(any(name in names for name in group) for group in READS)
    sums = {"current": [matrices], "delayed": [matrices, inputs + matrices], "block": []}[config.scaling]
    return [Comm("all_reduce", "all", STEP, SCALE * count * there, there) for count in sums]


def _ops(config: Config, block: Block, work: Work, mesh: Mesh) -> list[Op]:
    """The operations of a layer: ahead of the first matrix that reads a tensor in 8 bits, its cast."""
    ops = {op.name: op for op in block.ops}
    names = chosen(config, ops)
    found: list[Op] = []
    for op in block.ops:
        group = next((group for group in READS if op.name in group), ())
        mine = [name for name in group if name in names]
        if mine and op.name == mine[0]:
            found.append(_cast(config, mine, ops, work, mesh))
        found.append(_read(config, op, mine, [ops[n] for n in group if n in ops], work, mesh))
    if "o" in names and ops["o"].trained:
        found = [_unjoined(op) for op in found]
    return found


def _cast(config: Config, readers: list[str], ops: dict[str, Op], work: Work, mesh: Mesh) -> Op:
    """The cast of what `readers` read: what is kept of it, and the largest magnitude of what ranks have columns of."""
    first = ops[readers[0]]
    closes = first.split == ROW
    saved: tuple[Saved, ...] = ()
    if any(ops[name].trained for name in readers):
        width = first.shapes[0][1]
        tokens = 1 if closes else _tokens(ops, readers, work)
        elements = work.tokens * width // tokens
        scales = -(-work.tokens // SIDE) * width if config.scaling == "block" else 1
        split = COLUMN if closes else TOKENS
        saved = (Saved("cast", QUANTISED, elements, split), Saved("scales", STATISTIC, scales, WHOLE))
    there = (mesh.tp > 1) * 1 * closes * (config.scaling == "current")
    agreed = Comm("all_reduce", "tp", FORWARD, SCALE * there, there)
    return Op(f"{first.name} cast", saved=saved, comms=(agreed,) if np.any(there) else (), split=TOKENS)


def _tokens(ops: dict[str, Op], readers: list[str], work: Work) -> N:
    """Into how many parts ranks divide the tokens of what is read, as they keep it."""
    group = next(group for group in TOGETHER if readers[0] in group)
    whole = (saved for name in group if name in ops for saved in ops[name].saved if saved.name == "normed")
    kept = next(whole, None)
    return 1 if kept is None else work.tokens * ops[readers[0]].shapes[0][1] // kept.elements


def _read(config: Config, op: Op, mine: list[str], group: list[Op], work: Work, mesh: Mesh) -> Op:
    """A matrix whose input is kept cast; what is gathered again in backward is that."""
    high = any(other.trained and other.name not in mine for other in group)
    if not mine:
        return op
    comms = op.comms
    if not high and any(other.trained for other in group):
        op = replace(op, saved=tuple(saved for saved in op.saved if saved.name not in ("normed", "product")))
    again = [comm for comm in comms if comm.beside]
    if again and any(other.trained and other.name in mine for other in group):
        rest, size = tuple(comm for comm in comms if not comm.beside), work.bytes
        narrow = (replace(comm, bytes=comm.bytes // size.activation * size.quantised) for comm in again)
        comms = (*rest, *(again if high else ()), *narrow)
    if op.name in mine and op.split == COLUMN and config.scaling == "current" and np.any(op.backward):
        there = (mesh.tp > 1) * 1
        comms = (*comms, Comm("all_reduce", "tp", BACKWARD, SCALE * there, there)) if np.any(there) else comms
    return replace(op, comms=comms)


def _unjoined(op: Op) -> Op:
    """Attention without the copy of its result that only the product behind it would keep."""
    return replace(op, saved=tuple(saved for saved in op.saved if saved.name != "joined output"))


def apply(config: Config, trainable: Trainable, mesh: Mesh, table: Any = None) -> Trainable:
    """Give the chosen matrices their own products. Scales that outlive a step go with the step and into checkpoints.

    Raises UserError for a network that is not our decoder.
    """
    import torch

    from burnish.models.layers import Linear
    from burnish.ops.fp8_linear import Casting, Product, with_role
    from burnish.ops.fp8_product import way
    from burnish.ops.fp8_scales import Kept, Looking, Scales

    loss: Any = trainable.parts[0]
    if type(loss.model).__name__ != "Decoder":
        raise UserError(f"techniques.fp8: how to cast a {type(loss.model).__name__} is not known; train our decoder")
    names = modules_of(config, loss.model)
    device = loss.model.embed.weight.device
    groups = trainable.together(mesh).groups if mesh.world > 1 else None
    forms = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
    by = way(config.products, device, config.scaling == "block")
    every, close = (None, None) if groups is None else (groups.whole, groups.of.get("tp"))
    casting = Casting(config.scaling, forms[config.gradient_form], by, close)
    tensors = {read: forms["e4m3"] for read, _ in names.values()} | {f"{name} gradient": casting.form for name in names}
    numbers = {name: number for number, name in enumerate(tensors)}
    looking = Looking(config.history, config.amax == "latest") if config.scaling == "delayed" else None
    scales = Scales(tensors, len(names), device, every, looking)
    for number, (name, (read, closes)) in enumerate(names.items()):
        module: Any = loss.model.get_submodule(name)
        assert isinstance(module, Linear)
        kept = Kept(number, module.weight.dtype)
        own = numbers[read], numbers[f"{name} gradient"]
        module.product = Product(with_role(casting, closes), scales, kept, own)
    if config.scaling != "block":
        trainable.step = scales.around(lambda: trainable.parts, trainable.step)
    if looking is not None:
        trainable.carried["fp8"] = scales
    return trainable


def modules_of(config: Config, model: Any) -> dict[str, tuple[str, bool]]:
    """The chosen matrices of a decoder by name, with the name of what they read and whether they close a pair."""
    operations = {module: name for name, module in MATRICES.items()}
    found: dict[str, tuple[str, bool]] = {}
    for index, layer in enumerate(model.layers):
        inside = {operations[name] for name, _ in layer.named_modules() if name in operations}
        inside -= {"up", "down"} if hasattr(layer.mlp, "router") else set()
        names = chosen(config, inside)
        for name in names:
            group = next(group for group in READS if name in group)
            first = next(other for other in group if other in names)
            found[f"layers.{index}.{MATRICES[name]}"] = f"layers.{index}.{MATRICES[first]} input", len(group) == 1
    return found
