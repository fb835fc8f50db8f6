"""Sizes of a model with parts taken out: how much stays of what is asked for, and the config and the work of what stays.

A config says one width for all layers, so every layer keeps as many channels and key-value groups as the others; no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil
from typing import Any, TypeVar

from burnish.config import ModelConfig
from burnish.describe import head_layers
from burnish.encoders.config import EncoderConfig
from burnish.mesh import N
from burnish.work import Block, Op, Saved, Work


@dataclass(frozen=True)
class Sizes:
    """Layers, key-value groups of one (a key-value head with its query heads) and feed-forward channels of one.

    `queries` are a group's query heads; `channels` is 0 where the feed-forward part is one of experts.
    """

    layers: int
    groups: int
    channels: int
    queries: int
    hidden: int

    @property
    def heads(self) -> int:
        """Query heads of a layer."""
        return self.groups * self.queries


@dataclass(frozen=True)
class Rounding:
    """`multiple`: kept channels are one of it. `even_heads`: kept query heads divide the hidden size if all of them do."""

    multiple: int
    even_heads: bool


def sizes_of(work: Work) -> Sizes:
    """The sizes of a model by its description."""
    inside = [block for block in work.blocks if block.entering is not None and block.layers]
    ops = {op.name: op for block in inside for op in block.ops}
    size = int(ops["attention"].width)
    queries, groups = (int(ops[name].shapes[0][0]) // size for name in ("q", "k"))
    channels = int(ops["up"].shapes[0][0]) if "up" in ops else 0
    return Sizes(int(sum(b.layers for b in inside)), groups, channels, queries // groups, int(ops["q"].shapes[0][1]))


def sizes_of_config(config: ModelConfig | EncoderConfig) -> Sizes:
    """The sizes of a model by its config; an encoder's heads are groups of one."""
    if isinstance(config, EncoderConfig):
        return Sizes(config.layers, config.heads, config.ffn, 1, config.hidden)
    channels = 0 if config.traits.routed else config.ffn
    return Sizes(config.layers, config.kv_heads, channels, config.heads // config.kv_heads, config.hidden)


def exact(share: float) -> Fraction:
    """A share as it is written: 0.7 is seven tenths, not the binary number next to it."""
    return Fraction(str(share))


def kept_channels(sizes: Sizes, removed: Fraction, rounding: Rounding) -> int:
    """Channels that stay: at least 1 - `removed` of them, rounded up to the multiple, and never more than there are."""
    if not sizes.channels:
        return 0
    multiples = max(1, ceil(sizes.channels * (1 - removed) / rounding.multiple))
    return min(multiples * rounding.multiple, sizes.channels)


def legal_groups(sizes: Sizes, rounding: Rounding) -> list[int]:
    """The numbers of groups that may stay."""
    even = rounding.even_heads and sizes.hidden % sizes.heads == 0
    return [n for n in range(1, sizes.groups + 1) if not even or sizes.hidden % (n * sizes.queries) == 0]


def kept_groups(sizes: Sizes, removed: Fraction, rounding: Rounding) -> int:
    """Groups that stay: the least legal number that is at least 1 - `removed` of them."""
    return next(n for n in legal_groups(sizes, rounding) if n >= sizes.groups * (1 - removed))


def kept_layers(sizes: Sizes, removed: Fraction) -> int:
    """Layers that stay: at least 1 - `removed` of them, and one."""
    return max(1, ceil(sizes.layers * (1 - removed)))


def kept(sizes: Sizes, removed: tuple[Fraction, Fraction, Fraction], rounding: Rounding) -> Sizes:
    """What stays when shares of layers, groups and channels, in this order, are removed; never less than asked for."""
    layers, groups, channels = removed
    return replace(
        sizes,
        layers=kept_layers(sizes, layers),
        groups=kept_groups(sizes, groups, rounding),
        channels=kept_channels(sizes, channels, rounding),
    )


def along(sizes: Sizes, shares: tuple[Fraction, Fraction, Fraction], rounding: Rounding) -> Iterator[Sizes]:
    """All that can stay, largest first, when parts are removed in the proportion of `shares`."""
    counts = (range(1, sizes.layers + 1), legal_groups(sizes, rounding), range(0, sizes.channels, rounding.multiple))
    totals = (sizes.layers, sizes.groups, sizes.channels)
    steps = {Fraction(0)}
    for share, total, numbers in zip(shares, totals, counts, strict=True):
        steps |= {Fraction(total - n, total) / share for n in numbers if share and total}
    seen = None
    for step in sorted(steps):
        whole, groups, channels = (min(share * step, Fraction(1)) for share in shares)
        # The last group and the last channels stay: `kept` rounds up to them.
        found = kept(sizes, (whole, groups, channels), rounding)
        if found != seen:
            yield (seen := found)


Config = TypeVar("Config", bound=ModelConfig | EncoderConfig)


def pruned_config(config: Config, sizes: Sizes, layers: tuple[int, ...] | None = None) -> Config:
    """The config of a model cut to `sizes`; `layers` are the numbers of those kept, None: the first ones.

    Raises ValueError for what the family's file cannot say.
    """
    numbers = layers if layers is not None else tuple(range(sizes.layers))
    changed = {"layers": sizes.layers, "heads": sizes.heads}
    if isinstance(config, ModelConfig):
        far = sum(number < config.window_from for number in numbers)
        changed |= {"kv_heads": sizes.groups, "window_from": far}
    if sizes.channels:
        changed["ffn"] = sizes.channels
    return type(config)(**config.model_dump() | changed)


@dataclass(frozen=True)
class _Scaled:
    """What of an operation grows with the number of groups or channels: sizes of its parameters, and other figures."""

    rows: bool = False  # of its matrix, its bias, and what it makes
    columns: bool = False  # of its matrix
    figures: tuple[str, ...] = ("flops", "backward")
    saved: bool = False


_ROWS = _Scaled(rows=True, figures=("flops", "backward", "made"))
_COLUMNS = _Scaled(columns=True, saved=True)
_NORM = _Scaled(figures=("backward", "moved"), saved=True)
GROUPS = {
    **dict.fromkeys(("q", "k", "v"), _ROWS),
    **dict.fromkeys(("q_norm", "k_norm"), _NORM),
    "rotary": _Scaled(figures=("moved",)),
    "attention": _Scaled(figures=("flops", "backward", "scores", "passed"), saved=True),
    "o": _COLUMNS,
}
CHANNELS = {
    **dict.fromkeys(("gate", "up"), _ROWS),
    **dict.fromkeys(("gated_silu", "activation"), _Scaled(figures=("moved", "loose"), saved=True)),
    "down": _COLUMNS,
}


def pruned_work(work: Work, sizes: Sizes, layers: tuple[int, ...] | None = None) -> Work:
    """The description of a model cut to `sizes`. Which `layers` stay matters to those that see a window: None: the first."""
    before = sizes_of(work)
    numbers = layers if layers is not None else tuple(range(sizes.layers))

    def edit(block: Block) -> Block:
        if block.entering is None:
            return replace(block, ops=tuple(_windowed(op, before, numbers) for op in block.ops))
        ops = (_scaled(op, GROUPS, sizes.groups, before.groups) for op in block.ops)
        if before.channels:
            ops = (_scaled(op, CHANNELS, sizes.channels, before.channels) for op in ops)
        return replace(block, layers=block.layers and sizes.layers, ops=tuple(ops))

    made = work.edit(edit)
    # Only a decoder's head is weighed against its layers.
    return replace(made, head_layers=head_layers(list(made.blocks))) if work.head_layers else made


def _windowed(op: Op, before: Sizes, numbers: tuple[int, ...]) -> Op:
    """The layers that see a window are the last ones."""
    first = before.layers - op.windowed
    return replace(op, windowed=sum(number >= first for number in numbers) if op.windowed else 0)


def _scaled(op: Op, table: dict[str, _Scaled], stays: int, of: int) -> Op:
    if (rule := table.get(op.name)) is None:
        return op

    def cut(number: N) -> N:
        return number * stays // of

    shapes = op.shapes
    if rule.rows:
        shapes = tuple((cut(shape[0]), *shape[1:]) for shape in shapes)
    if rule.columns:
        shapes = ((shapes[0][0], cut(shapes[0][1])), *shapes[1:])
    saved: tuple[Saved, ...] = op.saved
    if rule.saved:
        saved = tuple(replace(tensor, elements=cut(tensor.elements)) for tensor in saved)
    figures: dict[str, Any] = {name: cut(getattr(op, name)) for name in rule.figures}
    return replace(op, shapes=shapes, saved=saved, **figures)


Cost = Callable[[Work], float]


def parameters_of(work: Work) -> int:
    """Numbers that a model holds; a tied head is the embedding's."""
    total = 0
    for layers, shape in work.shapes():
        elements = int(layers)
        for size in shape:
            elements *= int(size)
        total += elements
    return total


def token_flops(work: Work) -> int:
    """FLOPs of one token's matrix products in a forward pass: those of the layers, and of the head of a decoder.

    Attention's own are left out: they grow with the text a token stands in.
    """
    products = ("matmul", "router", "experts")
    layers = [block for block in work.blocks if block.entering is not None]
    total = sum(int(b.layers) * int(op.flops) for b in layers for op in b.ops if op.group in products)
    # A loss in chunks counts the head's product and its two gradients as one forward.
    total += sum(2 * int(op.made) * sizes_of(work).hidden for op in work.blocks[-1].ops if op.group == "head")
    return total // int(work.tokens)
