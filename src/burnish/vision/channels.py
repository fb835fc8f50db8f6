"""Channels: which channels of a network must leave together, found from its operators.

Every channel that a convolution makes is a variable. A sum ties the variables of both sides, a concatenation puts them one after
the other, a norm hangs its own parameters on them, a convolution reads them. What must leave together is a class of tied variables
with every slice of a parameter that hangs on it (Fang et al. 2023, "DepGraph", arXiv 2301.12900, section 3). Variables that reach
something whose treatment of channels is not known, or the network's output, stay; the reason is kept.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from torch import nn

from burnish.vision.operators import Network, Operator, Ref, Sizes, operators_of

# Operators that leave channels where they are and treat each alone.
EACH = (
    *("relu", "leaky_relu", "elu", "gelu", "silu", "sigmoid", "tanh", "hardtanh", "hardswish", "relu6", "dropout"),
    *("clone", "contiguous", "alias", "upsample_nearest2d", "upsample_nearest3d", "upsample_bilinear2d"),
    *("upsample_trilinear3d", "max_pool2d", "max_pool3d", "avg_pool2d", "avg_pool3d"),
    *("adaptive_avg_pool2d", "adaptive_avg_pool3d", "feature_dropout"),
)
SUMS = ("add", "sub", "mul", "div")
NORMS = {"batch_norm": (1, 2, 3, 4), "instance_norm": (1, 2, 3, 4), "group_norm": (2, 3), "prelu": (1,)}
CONVOLUTIONS = ("conv1d", "conv2d", "conv3d")
TRANSPOSED = ("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
GROUPS_AT = {**dict.fromkeys(CONVOLUTIONS, 6), **dict.fromkeys(TRANSPOSED, 6)}  # index among the arguments
Slot = tuple[str, int, int]  # parameter or buffer, dimension, index


@dataclass(frozen=True)
class Group:
    """Channels of one making: `slots[c]` are the slices that leave with channel c. `name` is the layer that makes them.

    `blocks`: as many channels must stay in each of this many equal runs, those of a group norm.
    """

    name: str
    slots: tuple[tuple[Slot, ...], ...]
    blocks: int = 1

    @property
    def width(self) -> int:
        return len(self.slots)


@dataclass(frozen=True)
class Channels:
    """The groups that can be cut, and those that cannot: layer -> reason."""

    groups: tuple[Group, ...]
    kept: dict[str, str]


@dataclass
class _Ties:
    """Union-find over channels, with what hangs on each class."""

    parents: list[int] = field(default_factory=list)
    slots: list[list[Slot]] = field(default_factory=list)
    makers: list[str] = field(default_factory=list)
    fixed: dict[int, str] = field(default_factory=dict)
    hung: dict[Slot, int] = field(default_factory=dict)

    def fresh(self, count: int, maker: str) -> list[int]:
        first = len(self.parents)
        self.parents += range(first, first + count)
        self.slots += [[] for _ in range(count)]
        self.makers += [maker] * count
        return list(range(first, first + count))

    def root(self, one: int) -> int:
        while self.parents[one] != one:
            self.parents[one] = self.parents[self.parents[one]]
            one = self.parents[one]
        return one

    def tie(self, one: int, other: int) -> None:
        a, b = sorted((self.root(one), self.root(other)))
        self.parents[b] = a

    def hang(self, channels: Iterable[int], name: str, dim: int) -> None:
        """A layer that is called twice, or shares its weight with another, ties what it reads and makes each time."""
        for index, one in enumerate(channels):
            slot = (name, dim, index)
            if (before := self.hung.setdefault(slot, one)) == one:
                self.slots[one].append(slot)
            else:
                self.tie(before, one)

    def fix(self, channels: Iterable[int], reason: str) -> None:
        for one in channels:
            self.fixed.setdefault(one, reason)


def groups(model: nn.Module, sizes: Sizes) -> Channels:
    """The channels of a model, read at images of `sizes` [B, C, *spatial].

    Raises UserError for a model whose Python cannot be followed.
    """
    ties, norms = _walk(_under_one_name(operators_of(model, sizes), model))
    return _collect(ties, norms)


def _under_one_name(network: Network, model: nn.Module) -> Network:
    """Tensors that have several names in the model by the first of them."""
    first: dict[int, str] = {}
    names = {}
    for held in (model.named_parameters, model.named_buffers):
        for name, tensor in held(remove_duplicate=False):
            names[name] = first.setdefault(id(tensor), name)
    tensors = {value: names.get(name, name) for value, name in network.tensors.items()}
    return replace(
        network, tensors=tensors, sizes={names.get(name, name): size for name, size in network.sizes.items()}
    )


def _walk(network: Network) -> tuple[_Ties, list[tuple[list[int], int]]]:
    """Ties of all channels, and (channels, groups) of every group norm."""
    ties = _Ties()
    at: dict[str, list[int]] = {}
    norms: list[tuple[list[int], int]] = []
    for name, sizes in network.inputs.items():
        at[name] = ties.fresh(sizes[1], "input")
        ties.fix(at[name], "input of the network")
    for operator in network.operators:
        at[operator.name] = _step(operator, network, ties, at, norms)
    for name in network.outputs:
        ties.fix(at.get(name, ()), "output of the network")
    return ties, norms


def _step(
    operator: Operator,
    network: Network,
    ties: _Ties,
    at: dict[str, list[int]],
    norms: list[tuple[list[int], int]],
) -> list[int]:
    """Channels of what an operator gives."""
    kind, first = operator.kind, operator.args[0] if operator.args else None
    given = at.get(first.name, []) if isinstance(first, Ref) else []
    if kind in GROUPS_AT and isinstance(first, Ref):
        return _convolution(operator, network, ties, given)
    if kind in NORMS and given:
        for index in NORMS[kind]:
            held = operator.arg(index)
            if isinstance(held, Ref) and network.sizes.get(network.tensors.get(held.name, ""), ()) == (len(given),):
                ties.hang(given, network.tensors[held.name], 0)
        if kind == "group_norm":
            norms.append((given, operator.arg(1)))
        return given
    if kind in SUMS:
        sides = [at[one.name] for one in operator.args[:2] if isinstance(one, Ref) and one.name in at]
        return _sum(ties, sides, operator) if sides else _unknown(operator, ties, at)
    if kind == "cat" and operator.arg(1, 0) == 1:
        return [one for part in first or () for one in at[part.name]]
    if kind == "linear" and len(operator.sizes) == 2 and isinstance(first, Ref):
        return _product(operator, network, ties, given)
    if kind in EACH or _moves_none(operator):
        return given
    if kind in ("view", "flatten", "reshape") and given and len(operator.sizes) == 2:
        return [one for one in given for _ in range(operator.sizes[1] // len(given))]
    return _unknown(operator, ties, at)


def _moves_none(operator: Operator) -> bool:
    """Paddings of pixels alone, and means over pixels."""
    if operator.kind == "pad":
        return len(operator.arg(1, ())) <= 2 * (len(operator.sizes) - 2)
    return operator.kind == "mean" and all(axis not in (0, 1) for axis in operator.arg(1, (0,)))


def _product(operator: Operator, network: Network, ties: _Ties, given: list[int]) -> list[int]:
    weight = network.tensors[operator.args[1].name]
    made = ties.fresh(operator.sizes[1], weight.removesuffix(".weight"))
    ties.hang(given, weight, 1)
    ties.hang(made, weight, 0)
    if isinstance(bias := operator.arg(2), Ref):
        ties.hang(made, network.tensors[bias.name], 0)
    return made


def _convolution(operator: Operator, network: Network, ties: _Ties, given: list[int]) -> list[int]:
    """A convolution reads some channels and makes others; one whose every group is a channel ties both."""
    weight = network.tensors.get(operator.args[1].name, operator.args[1].name)
    layer, count = weight.removesuffix(".weight"), operator.arg(GROUPS_AT[operator.kind], 1)
    made = ties.fresh(operator.sizes[1], layer)
    reads, makes = (0, 1) if operator.kind in TRANSPOSED else (1, 0)
    if count == 1:
        ties.hang(given, weight, reads)
        ties.hang(made, weight, makes)
    elif count == len(given) == len(made):
        for one, other in zip(given, made, strict=True):
            ties.tie(one, other)
        ties.hang(made, weight, 0)
    else:
        ties.fix((*given, *made), f"{layer} convolves {count} groups of channels")
    if isinstance(bias := operator.arg(2), Ref):
        ties.hang(made, network.tensors[bias.name], 0)
    return made


def _sum(ties: _Ties, sides: list[list[int]], operator: Operator) -> list[int]:
    """Both sides of a sum are tied; a side of one channel that is spread over the others stays."""
    wide = max(sides, key=len)
    for side in sides:
        if len(side) == len(wide):
            for one, other in zip(side, wide, strict=True):
                ties.tie(one, other)
        else:
            ties.fix(side, f"{operator.kind} spreads it over other channels")
    return wide


def _unknown(operator: Operator, ties: _Ties, at: dict[str, list[int]]) -> list[int]:
    reason = f"{operator.kind} may move channels"
    for name in operator.reads():
        ties.fix(at.get(name, ()), reason)
    made = ties.fresh(operator.sizes[1] if len(operator.sizes) > 1 else 0, operator.name)
    ties.fix(made, reason)
    return made


def _collect(ties: _Ties, norms: list[tuple[list[int], int]]) -> Channels:
    """Classes that hang on the same dimensions of the same parameters, in the order of their channels, are one group."""
    members: dict[int, list[int]] = {}
    for one in range(len(ties.parents)):
        members.setdefault(ties.root(one), []).append(one)
    slots = {root: tuple(slot for one in ones for slot in ties.slots[one]) for root, ones in members.items()}
    reasons = {root: why for root, ones in members.items() for one in ones if (why := ties.fixed.get(one))}
    alike: dict[tuple[str, tuple[tuple[str, int], ...]], list[int]] = {}
    for root, held in slots.items():
        alike.setdefault((ties.makers[root], tuple((name, dim) for name, dim, _ in held)), []).append(root)
    blocks = _blocks(ties, norms, list(alike.values()), reasons)
    found, kept = [], {}
    for (name, _), roots in alike.items():
        free = [root for root in roots if root not in reasons]
        if len(free) == len(roots) > 1:
            found.append(Group(name, tuple(slots[root] for root in roots), blocks.get(roots[0], 1)))
        else:
            kept[name] = next((reasons[root] for root in roots if root in reasons), "one channel")
    return Channels(tuple(found), {name: why for name, why in kept.items() if name != "input"})


def _blocks(
    ties: _Ties, norms: list[tuple[list[int], int]], alike: list[list[int]], reasons: dict[int, str]
) -> dict[int, int]:
    """First class of a group -> blocks of its group norms. Norms over several groups, or of other blocks, keep all of it."""
    blocks: dict[int, int] = {}
    for channels, count in norms:
        roots = [ties.root(one) for one in channels]
        if roots in alike and blocks.get(roots[0], count) == count:
            blocks[roots[0]] = count
        else:
            reasons.update((root, "a group norm runs over channels of several layers") for root in roots)
    return blocks
