"""Trace: a network that is not ours, followed at one size of images, says what it takes at any other.

Parameters do not depend on the size. A result has a side of floor((n + 2 padding - dilation (kernel - 1) - 1) / stride)
+ 1 or one like it, so sides are carried from operator to operator at the new size; FLOPs are then affine in the pixels of each
result, and what is saved for backward is a sum of results, each kept once whoever reads it. Exact for odd sides too, wherever the
network itself takes them, but not where its Python chooses operators by size: such a choice is seen as operands that do not fit.
Convolution arithmetic: Dumoulin and Visin 2016, arXiv 1603.07285.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import floor, prod

from burnish.errors import UserError
from burnish.vision.operators import Network, Operator, Ref, Sizes

FLOAT, INDEX = 4, 8  # bytes of a number, and of a place that pooling remembers
CONVOLUTIONS = ("conv1d", "conv2d", "conv3d")
TRANSPOSED = ("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
POOLS = ("max_pool2d", "max_pool3d", "avg_pool2d", "avg_pool3d")
SAMPLED = ("upsample_nearest2d", "upsample_nearest3d", "upsample_bilinear2d", "upsample_trilinear3d")
# What backward needs of each: what it read, what it gave, or nothing.
READ = (
    "leaky_relu",
    "relu6",
    "gelu",
    "silu",
    "prelu",
    "batch_norm",
    "instance_norm",
    "group_norm",
    "avg_pool2d",
    "avg_pool3d",
)
GAVE = ("relu", "sigmoid", "tanh")
SUMS = ("add", "sub")
NOTHING = (*SUMS, *SAMPLED, "cat", "pad", "dropout", "contiguous", "alias")


@dataclass(frozen=True)
class Taken:
    """What one forward and backward of float32 images take: elements, FLOPs, bytes saved between them, bytes of the scores."""

    parameters: int
    forward_flops: int
    backward_flops: int
    saved: int
    scores: int


@dataclass
class _At:
    """Sizes of all values at the new size; `home`: value -> the value whose memory it lies in; what is saved of each."""

    sizes: dict[str, Sizes]
    home: dict[str, str] = field(default_factory=dict)
    saved: dict[str, int] = field(default_factory=dict)
    extra: int = 0
    forward: int = 0
    backward: int = 0

    def save(self, name: str) -> None:
        """Keep a value for backward, once."""
        place = self.home.get(name, name)
        self.saved[place] = FLOAT * prod(self.sizes[place])


def predict(network: Network, sizes: Sizes) -> Taken:
    """What the network takes for images of `sizes` [B, C, *spatial]. No torch.

    Raises UserError for an operator whose sizes are not known, and where operands do not fit at this size.
    """
    (image,) = network.inputs
    at = _At({image: sizes})
    learned = _learned(network)
    for operator in network.operators:
        reads = [name for name in operator.reads() if name in at.sizes]
        at.sizes[operator.name] = _sizes(operator, [at.sizes[name] for name in reads], network)
        at.home[operator.name] = operator.name
        if operator.in_place or _alias(operator):
            at.home[operator.name] = at.home.get(reads[0], reads[0])
        _count(operator, network, reads, at, learned)
    scores = sum(FLOAT * prod(at.sizes[name]) for name in network.outputs)
    return Taken(network.parameters, at.forward, at.backward, sum(at.saved.values()) + at.extra, scores)


def _learned(network: Network) -> set[str]:
    """Values that gradients reach: all that have a parameter before them."""
    found: set[str] = set()
    for operator in network.operators:
        if any(name in found or name in network.tensors for name in operator.reads()):
            found.add(operator.name)
    return found


def _alias(operator: Operator) -> bool:
    return operator.kind in ("dropout", "contiguous", "alias")


def _sizes(operator: Operator, given: list[Sizes], network: Network) -> Sizes:
    """Sizes of an operator's result. Rows and channels are the reader's own, sides by the operator's rule."""
    kind = operator.kind
    if kind == "cat":
        if len({(one[0], *one[2:]) for one in given}) > 1 or operator.arg(1, 0) != 1:
            raise _unfit(operator, given)
        return (given[0][0], sum(one[1] for one in given), *given[0][2:])
    if kind in (*SUMS, "mul"):
        return _spread(operator, given)
    sides, rule = given[0][2:], RULES.get(kind)
    if rule is not None:
        channels = operator.sizes[1]
        return (given[0][0], channels, *rule(operator, sides, network))
    if kind in (*READ, *GAVE, *NOTHING):
        return given[0]
    raise UserError(f"{operator.name}: sizes of {kind} are not known, so nothing is predicted at another size")


def _spread(operator: Operator, given: list[Sizes]) -> Sizes:
    found = []
    for sides in zip(*given, strict=True):
        if len({side for side in sides if side != 1}) > 1:
            raise _unfit(operator, given)
        found.append(max(sides))
    return tuple(found)


def _unfit(operator: Operator, given: list[Sizes]) -> UserError:
    shown = " and ".join(str(list(one)) for one in given)
    return UserError(f"{operator.name}: {operator.kind} of {shown} does not fit; give sides that the levels divide")


def _each(value: object, count: int) -> tuple[int, ...]:
    """A setting of every side."""
    found = value if isinstance(value, tuple) else (value,)
    return tuple(found) * count if len(found) == 1 else found


def _window(sides: Sizes, kernel: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes, up: bool = False) -> Sizes:
    found = []
    for side, k, s, p, d in zip(sides, kernel, stride, padding, dilation, strict=True):
        room = side + 2 * p - d * (k - 1) - 1
        found.append((-(-room // s) if up else room // s) + 1)
    return tuple(found)


def _weight(operator: Operator, network: Network) -> Sizes:
    return network.sizes[network.tensors[operator.args[1].name]]


def _convolved(operator: Operator, sides: Sizes, network: Network) -> Sizes:
    count = len(sides)
    stride, padding, dilation = (_each(operator.arg(place, d), count) for place, d in ((3, 1), (4, 0), (5, 1)))
    return _window(sides, _weight(operator, network)[2:], stride, padding, dilation)


def _transposed(operator: Operator, sides: Sizes, network: Network) -> Sizes:
    """(n - 1) stride - 2 padding + dilation (kernel - 1) + output padding + 1."""
    count, defaults = len(sides), ((3, 1), (4, 0), (5, 0), (7, 1))
    settings = (_each(operator.arg(place, default), count) for place, default in defaults)
    kernel = _weight(operator, network)[2:]
    rows = zip(sides, kernel, *settings, strict=True)
    return tuple((side - 1) * s - 2 * p + d * (k - 1) + extra + 1 for side, k, s, p, extra, d in rows)


def _pooled(operator: Operator, sides: Sizes, network: Network) -> Sizes:
    count = len(sides)
    kernel, padding = _each(operator.arg(1), count), _each(operator.arg(3, 0), count)
    stride = _each(operator.arg(2) or kernel, count)
    largest = operator.kind.startswith("max")
    dilation = _each(operator.arg(4, 1), count) if largest else (1,) * count
    return _window(sides, kernel, stride, padding, dilation, bool(operator.arg(5 if largest else 4, False)))


def _sampled(operator: Operator, sides: Sizes, network: Network) -> Sizes:
    scales = operator.args[-1]
    if not isinstance(scales, tuple):
        raise UserError(f"{operator.name}: {operator.kind} to a fixed size, so nothing is predicted at another one")
    return tuple(floor(side * scale) for side, scale in zip(sides, scales, strict=True))


def _padded(operator: Operator, sides: Sizes, network: Network) -> Sizes:
    """Pairs of paddings, the last side's first."""
    pads = operator.arg(1, ())
    found = list(sides)
    for place in range(len(pads) // 2):
        found[-1 - place] += pads[2 * place] + pads[2 * place + 1]
    return tuple(found)


RULES: dict[str, Callable[[Operator, Sizes, Network], Sizes]] = {
    **dict.fromkeys(CONVOLUTIONS, _convolved),
    **dict.fromkeys(TRANSPOSED, _transposed),
    **dict.fromkeys(POOLS, _pooled),
    **dict.fromkeys(SAMPLED, _sampled),
    "pad": _padded,
}


def _count(operator: Operator, network: Network, reads: list[str], at: _At, learned: set[str]) -> None:
    """FLOPs of an operator, and what it saves for backward."""
    kind, made = operator.kind, at.sizes[operator.name]
    if operator.name not in learned:
        return
    if kind in CONVOLUTIONS or kind in TRANSPOSED:
        rows, _, *sides = at.sizes[reads[0]] if kind in TRANSPOSED else made
        flops = 2 * rows * prod(sides) * prod(_weight(operator, network))
        at.forward += flops
        at.backward += flops * (2 if reads[0] in learned else 1)  # images themselves need no gradient
        at.save(reads[0])
    elif kind in READ or (kind == "pad" and operator.arg(2, "constant") != "constant"):
        at.save(reads[0])
    elif kind in GAVE:
        at.save(operator.name)
    elif kind.startswith("max_pool"):
        at.save(reads[0])
        at.extra += INDEX * prod(made)
    elif kind == "mul":
        for name in reads:
            at.save(name)
    if kind in STATISTICS:
        at.extra += FLOAT * STATISTICS[kind](operator, made)


# Numbers that norms save beside: means and deviations, with stored statistics those too, and a weight for every row.
STATISTICS: dict[str, Callable[[Operator, Sizes], int]] = {
    "batch_norm": lambda operator, made: (2 + 2 * isinstance(operator.arg(3), Ref)) * made[1],
    "instance_norm": lambda operator, made: (2 + isinstance(operator.arg(1), Ref)) * made[0] * made[1],
    "group_norm": lambda operator, made: 2 * made[0] * operator.arg(1),
}
