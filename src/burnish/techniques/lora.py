"""Low-rank adapters: the model's matrices stay as they are; a narrow pair of matrices beside each one learns.

Idea    Hu et al. 2021, "LoRA: low-rank adaptation of large language models" (arXiv 2106.09685), section 4.1:
        y = x W^T + s (x A^T) B^T with W frozen, A [rank, in] drawn, B [out, rank] zero, so that the first step starts
        from the model as it is. s = alpha / rank; with `rslora` alpha / sqrt(rank) (Kalajdzievski 2023, arXiv 2312.03732).
Gain    no gradient and no optimizer state for what is frozen, and no product for its gradient: a frozen matrix has one
        product in backward where a trained one has two, the loss makes two of three. What only that product would read
        is not saved: the inputs of frozen matrices, the head's gradient. Nothing runs backward before the first adapter.
Price   two narrow products a matrix each way, `rank` elements a token saved. An adapted matrix's input stays, for A.
Limits  the update has rank `rank`. Experts, routers and embeddings carry no adapters. Beside expert parallelism it is
        refused.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import Field

from burnish.errors import UserError, nearest
from burnish.frozen_parts import HELD, INPUTS, NORMS, READS, Reached, frozen, reached, without_held
from burnish.mesh import Mesh, N
from burnish.section import Section
from burnish.work import ACTIVATION, COLUMN, ROW, TOKENS, Block, Op, Saved, Work
from burnish.work import WHOLE as NARROW

if TYPE_CHECKING:
    from torch import nn

    from burnish.train.step import Trainable

# Operation of a layer -> its module there.
MATRICES = {
    "q": "attention.q",
    "k": "attention.k",
    "v": "attention.v",
    "o": "attention.o",
    "gate": "mlp.gate",
    "up": "mlp.up",
    "down": "mlp.down",
}
WHOLE = "name it in techniques.lora.train to train it whole"
ROUTED = "a token reads a part of it only; adapters go on attention here"
# Operations that carry no adapter -> (module, why).
WITHOUT = {
    "embed": ("embed", f"an embedding is looked up, not multiplied; {WHOLE}"),
    "head": ("head", f"the loss multiplies with it in pieces; {WHOLE}"),
    "router": ("mlp.router", "it chooses experts, and a choice has no gradient"),
    "expert_up": ("mlp.up", ROUTED),
    "expert_down": ("mlp.down", ROUTED),
}
ADAPTER: dict[str, Any] = {"group": "adapter"}
TOGETHER = (("q", "k", "v"), ("gate", "up"))  # matrices that read one tensor, which the first there is names as saved

Kind = Literal["norms", "biases", "embedding", "head"]


class Config(Section):
    """`targets`: patterns of matrices such as `attention.*` or `q`; none: every one of attention and dense feed-forward.

    `train` names what learns whole beside them; biases are those of matrices. `seed` None: train.seed.
    """

    rank: int = Field(default=8, ge=1)
    alpha: float = Field(default=16.0, gt=0)
    rslora: bool = False
    targets: tuple[str, ...] = ()
    train: tuple[Kind, ...] = ()
    seed: int | None = Field(default=None, ge=0, lt=2**63)

    @property
    def scale(self) -> float:
        """The factor on what an adapter gives."""
        return self.alpha / (math.sqrt(self.rank) if self.rslora else self.rank)


def check(config: Config, work: Work, mesh: Mesh) -> None:
    """Raises UserError for a target that names no matrix or one without adapters, and for a rank that is none."""
    ops = {op.name: op for block in work.blocks for op in block.ops if np.any(block.layers)}
    if foreign := sorted(ops.keys() - READS.keys()):
        raise UserError(f"techniques.lora: adapters are for decoders; this model has {foreign[0]!r}")
    known = [module for name, module in MATRICES.items() if name in ops]
    for target in config.targets:
        if not any(_fits(module, target) for module in known):
            raise UserError(f"techniques.lora.targets: {_unknown(target, known, ops)}; there are {', '.join(known)}")
    among = {"q", "k", "v"}.intersection(chosen(config, ops))
    if np.any(ops["attention"].scores) and len(among) in (1, 2):  # a backward of some of its products only
        raise UserError(
            f"techniques.lora: adapters on {', '.join(sorted(among))} of q, k and v do not go with plain attention; "
            "use all three, or another techniques.attention.kernel"
        )
    for name in chosen(config, ops):
        if config.rank >= (least := int(min(ops[name].shapes[0]))):
            raise UserError(
                f"techniques.lora.rank {config.rank}: {MATRICES[name]} is of rank {least} itself; use 1..{least - 1}"
            )


def _unknown(target: str, known: list[str], ops: Iterable[str]) -> str:
    """Why a target names no adapter."""
    for module, why in (WITHOUT[name] for name in WITHOUT if name in ops):
        if _fits(module, target):
            return f"{module}: {why}"
    return f"no matrix {target!r}; {nearest(target, [*known, *(module.split('.')[-1] for module in known)])}"


def _fits(module: str, target: str) -> bool:
    return fnmatchcase(module, target) or fnmatchcase(module.split(".")[-1], target)


def chosen(config: Config, names: Iterable[str]) -> list[str]:
    """The operations among `names` that get adapters, in the order of a layer."""
    own = [name for name in MATRICES if name in names]
    return [name for name in own if not config.targets or any(_fits(MATRICES[name], t) for t in config.targets)]


def predict(config: Config, work: Work, mesh: Mesh, table: Any = None) -> Work:
    """The work with frozen matrices and adapters. The first layer is a block of its own where nothing before it learns."""
    learning = _learning(config, work)
    stream = False
    blocks: list[Block] = []
    used: set[str] = set()
    for block in work.blocks:
        for piece in _pieces(block, stream):
            found = reached(piece.ops, stream, (*learning, *chosen(config, [op.name for op in piece.ops])))
            if np.any(piece.layers):  # a kind of layer that a model has none of passes nothing on
                stream = found.stream
            used |= {held for held, reader in zip(HELD, ("rotary", "attention"), strict=True) if found.live.get(reader)}
            blocks.append(replace(piece, ops=tuple(_ops(piece, found, config, learning, work.tokens))))
    spare = set(HELD) - used

    def edit(block: Block) -> Block:
        return replace(block, ops=tuple(without_held(op, spare) if op.name == "embed" else op for op in block.ops))

    return replace(work, blocks=tuple(blocks)).edit(edit)


def _learning(config: Config, work: Work) -> set[str]:
    """The operations whose own parameters learn, all of them or their bias."""
    ops = {op.name: op for block in work.blocks for op in block.ops}
    ends = {"embedding": "embed", "head": "head"}
    found = {ends[kind] for kind in config.train if kind in ends}
    if found and not ops["head"].shapes:  # one matrix for both
        found = set(ends.values())
    norms = [name for name in NORMS if "norms" in config.train]
    biased = [name for name in MATRICES if name in ops and _biased(ops[name], config)]
    return {*found, *norms, *biased}


def _biased(op: Op, config: Config) -> bool:
    return "biases" in config.train and op.group == "matmul" and len(op.shapes) > 1


def _pieces(block: Block, stream: bool) -> list[Block]:
    """A kind of layer as it is, or with its first one apart."""
    if block.entering is None or stream or not np.any(block.layers):
        return [block]
    pieces = [replace(block, layers=1), replace(block, layers=block.layers - 1)]
    return [piece for piece in pieces if np.any(piece.layers)]


def _ops(block: Block, found: Reached, config: Config, learning: set[str], tokens: N) -> Iterator[Op]:
    """The operations of a layer, each with its adapter ahead of it and its bias behind it."""
    own = chosen(config, [op.name for op in block.ops])
    for op in block.ops:
        together = next((names for names in TOGETHER if op.name in names), (op.name,))
        read = ("o",) if op.group == "attention" else together
        entering, learns = found.entering[op.name], op.name in learning and op.name not in MATRICES
        still = frozen(op, entering, found.live[op.name], learns, any(name in own for name in read))
        if op.name in own:
            inputs = tuple(saved for saved in still.saved if saved.name in INPUTS)
            still = replace(still, saved=tuple(saved for saved in still.saved if saved not in inputs))
            yield from _adapter(op, config.rank, entering, inputs, tokens)
        if not _biased(op, config):
            yield still
            continue
        yield replace(still, shapes=op.shapes[:1])
        yield Op(f"{op.name} bias", op.shapes[1:], split=COLUMN if op.split == COLUMN else TOKENS)


def _adapter(op: Op, rank: int, entering: bool, kept: tuple[Saved, ...], tokens: N) -> Iterator[Op]:
    """The two narrow products of a matrix. A's gradient reads the matrix's input, B's the narrow result in between."""
    outputs, inputs = op.shapes[0]
    down, up = 2 * tokens * inputs * rank, 2 * tokens * rank * outputs
    between = (Saved("narrow", ACTIVATION, tokens * rank, NARROW),)
    first, second = (ROW, NARROW) if op.split == ROW else (NARROW, COLUMN)
    yield Op(
        f"{op.name}.a", ((rank, inputs),), down, down * (1 + entering), kept, split=first, **ADAPTER, made=tokens * rank
    )
    yield Op(f"{op.name}.b", ((outputs, rank),), up, 2 * up, between, split=second, **ADAPTER, made=tokens * outputs)


def apply(config: Config, trainable: Trainable, mesh: Mesh, table: Any = None) -> Trainable:
    """Freeze everything, put the adapters on, and let the optimizer have what learns, in its own groups."""
    optimizer = trainable.optimizer
    (matrices,) = (group for group in optimizer.param_groups if any(p.dim() > 1 for p in group["params"]))
    for part in trainable.parts:
        for parameter in part.parameters():
            parameter.requires_grad_(False)
        for parameter in whole(config, part.model):
            parameter.requires_grad_(True)
        matrices["params"] += dress(config, part.model)
    for group in optimizer.param_groups:
        group["params"] = [parameter for parameter in group["params"] if parameter.requires_grad]
    optimizer.param_groups[:] = [group for group in optimizer.param_groups if group["params"]]
    return trainable


def dress(config: Config, model: Any) -> list[nn.Parameter]:
    """Put the adapters on a decoder's layers; gives their matrices."""
    import torch

    from burnish.models.layers import Linear
    from burnish.ops.lora import adapted, put_on

    known = {f"layers.{k}.{module}" for k in range(len(model.layers)) for module in MATRICES.values()}
    names = [name for name, module in model.named_modules() if name in known and isinstance(module, Linear)]
    wanted = [n for n in names if not config.targets or any(_fits(n.split(".", 2)[2], t) for t in config.targets)]
    put_on(model, wanted, config.rank, config.scale, torch.Generator().manual_seed(config.seed or 0))
    return [parameter for _, layer in adapted(model) for parameter in (layer.a, layer.b)]


def whole(config: Config, model: Any) -> list[nn.Parameter]:
    """The parameters that learn beside the adapters."""
    found: list[nn.Parameter] = []
    kinds = set(config.train)
    if "head" in kinds and model.head.weight is model.embed.weight:
        kinds.add("embedding")
    for name, parameter in model.named_parameters():
        *path, last = name.split(".")
        kind = {"embed": "embedding", "positions": "embedding", "head": "head"}.get(path[0])
        if path[-1].endswith("norm"):
            kind = "norms"
        elif last == "bias":
            kind = "biases"
        if kind in kinds:
            found.append(parameter)
    return found
