"""Plan: the degrees, formats and batches in which a decoder can be served on given chips, which to take, and why not the others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from burnish.architecture import Architecture
from burnish.cluster import Cluster
from burnish.errors import UserError
from burnish.serve_plan.passes import Serving, decode_seconds, prefill_seconds
from burnish.serve_plan.sizes import HALF, kv_bytes, tables, weight_bytes, weight_format, workspace_bytes

KV = {"bf16": HALF, "fp8": 1, "int8": 1}  # bytes of an element of keys and values
LARGEST = 4096  # sequences of a batch that are looked at


@dataclass(frozen=True)
class Asked:
    """A decoder, its chips, and what is asked of it: `prompt` and `new` tokens of each of `batch` sequences.

    `memory` bytes of each chip, 0 for all it has; `weights` formats to compare, the first one preferred.
    """

    model: Architecture
    cluster: Cluster
    prompt: int
    new: int
    batch: int = 1
    memory: int = 0
    weights: tuple[str, ...] = ("bf16",)
    kv: str = "bf16"
    engine: str = "fused-2023"
    tp: int = 0  # 0 = chosen


@dataclass(frozen=True)
class Point:
    """One batch: seconds of its prompts, of one token of all, and tokens a second of whole batches after each other."""

    batch: int
    prefill: float
    decode: float
    throughput: float


@dataclass(frozen=True)
class Way:
    """One format on one group of chips: bytes a chip, the largest batch, and the batch that was asked for."""

    weights: str
    tp: int
    weight_bytes: int
    kv_bytes: int
    workspace_bytes: int
    memory: int
    largest: int
    asked: Point

    @property
    def fits(self) -> bool:
        """Whether the batch that was asked for does."""
        return self.needed <= self.memory

    @property
    def needed(self) -> int:
        """Bytes a chip at the batch that was asked for."""
        return self.weight_bytes + self.kv_bytes + self.workspace_bytes


@dataclass(frozen=True)
class Plan:
    """All ways, the smallest that fits, the fastest that does, throughput against batch of the fastest, and what would help."""

    asked: Asked
    ways: tuple[Way, ...]
    smallest: Way | None
    fastest: Way | None
    curve: tuple[Point, ...]
    why_not: tuple[str, ...]
    remedies: tuple[str, ...]

    @property
    def fits(self) -> bool:
        """Whether anything does."""
        return self.fastest is not None


def plan(asked: Asked) -> Plan:
    """Every format in every degree. Raises UserError for what cannot be asked."""
    check(asked)
    ways = tuple(way(asked, weights, tp) for weights in asked.weights for tp in degrees(asked))
    fitting = [one for one in ways if one.fits]
    smallest = min(fitting, key=lambda one: (one.tp, asked.weights.index(one.weights)), default=None)
    fastest = min(fitting, key=lambda one: one.asked.prefill + asked.new * one.asked.decode, default=None)
    return Plan(
        asked,
        ways,
        smallest,
        fastest,
        tuple(curve(asked, fastest)) if fastest else (),
        tuple(why_not(asked, ways, fastest)),
        () if fastest else tuple(remedies(asked)),
    )


def check(asked: Asked) -> None:
    """Raises UserError where lengths, batch, memory, formats or degree cannot be."""
    for name, value in (("--prompt", asked.prompt), ("--new", asked.new), ("--batch", asked.batch)):
        if not 1 <= value <= 2**24:
            raise UserError(f"{name} {value}: 1 to {2**24}")
    longest, length = int(asked.model.max_positions), asked.prompt + asked.new
    if longest and length > longest:
        raise UserError(f"--prompt and --new make {length} positions; {asked.model.name} has {longest}")
    for weights in asked.weights:
        weight_format(weights)
    if asked.kv not in KV:
        raise UserError(f"--kv {asked.kv!r}: unknown; known: {', '.join(KV)}")
    if asked.engine not in tables()["engines"]:
        raise UserError(f"--engine {asked.engine!r}: unknown; known: {', '.join(tables()['engines'])}")
    if not 0 <= asked.memory <= asked.cluster.chip.memory:
        raise UserError(f"--memory: a chip of {asked.cluster.name} has {asked.cluster.chip.memory / 2**30:.1f} GiB")
    if not degrees(asked):
        one = replace(asked, tp=0)
        raise UserError(f"--tp {asked.tp}: heads and chips allow {', '.join(map(str, degrees(one)))}")


def degrees(asked: Asked) -> list[int]:
    """Tensor-parallel degrees: those that divide the heads, within the chips that share fast links."""
    most = min(asked.cluster.domain, asked.cluster.gpus)
    found = [tp for tp in range(1, most + 1) if int(asked.model.heads) % tp == 0]
    return [tp for tp in found if asked.tp in (0, tp)]


def capacity(asked: Asked) -> int:
    """Bytes of a chip that may be used."""
    return asked.memory or int(asked.cluster.chip.memory)


def serving(asked: Asked, weights: str, tp: int) -> Serving:
    """How it is served in one format on `tp` chips."""
    return Serving(asked.model, asked.cluster, weights, KV[asked.kv], tp, 1, asked.engine)


def sequence_bytes(asked: Asked, tp: int) -> int:
    """Bytes of the keys and values of one whole sequence on each chip."""
    return kv_bytes(asked.model, asked.prompt + asked.new, KV[asked.kv], tp)


def beside_bytes(asked: Asked, batch: int, tp: int) -> int:
    """Bytes of the largest step: one prompt at a time, or a token of each sequence."""
    return workspace_bytes(asked.model, max(asked.prompt, batch), batch, tp)


def largest_batch(asked: Asked, weights: str, tp: int) -> int:
    """The most sequences that fit; 0 where not one does."""
    fixed = weight_bytes(asked.model, weights, tp)

    def fits(batch: int) -> bool:
        return fixed + batch * sequence_bytes(asked, tp) + beside_bytes(asked, batch, tp) <= capacity(asked)

    low, high = 0, 1
    while fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def point(asked: Asked, served: Serving, batch: int) -> Point:
    """One batch, its tokens at the mean length of a sequence that grows."""
    prefill = prefill_seconds(served, batch, asked.prompt)
    decode = decode_seconds(served, batch, asked.prompt + asked.new // 2)
    return Point(batch, prefill, decode, batch * asked.new / (prefill + (asked.new - 1) * decode))


def way(asked: Asked, weights: str, tp: int) -> Way:
    """One format in one degree."""
    return Way(
        weights,
        tp,
        weight_bytes(asked.model, weights, tp),
        asked.batch * sequence_bytes(asked, tp),
        beside_bytes(asked, asked.batch, tp),
        capacity(asked),
        largest_batch(asked, weights, tp),
        point(asked, serving(asked, weights, tp), asked.batch),
    )


def curve(asked: Asked, best: Way) -> Iterator[Point]:
    """Powers of two, and the largest batch that fits."""
    most = min(best.largest, LARGEST)
    batches = sorted({most, *(2**k for k in range(most.bit_length()))})
    return (point(asked, serving(asked, best.weights, best.tp), batch) for batch in batches)


def why_not(asked: Asked, ways: tuple[Way, ...], best: Way | None) -> Iterator[str]:
    """A sentence for each way that is not the fastest."""
    for one in ways:
        name = f"{one.weights}, tensor-parallel {one.tp}"
        if not one.fits:
            over = (one.needed - one.memory) / 2**30
            fewer = f"; at most {one.largest} fit" if one.largest else ""
            yield f"{name}: {over:.2f} GiB a chip too much at batch {asked.batch}{fewer}"
        elif best is not None and one != best:
            own, least = (way.asked.prefill + asked.new * way.asked.decode for way in (one, best))
            yield f"{name}: takes {own / least:.2f} times as long"


def remedies(asked: Asked) -> Iterator[str]:
    """The nearest changes under which something fits."""
    most = max(largest_batch(asked, weights, tp) for weights in asked.weights for tp in degrees(asked))
    if most:
        yield f"--batch {most}"
    others = [name for name in tables()["formats"] if name not in asked.weights]
    smaller = sorted(others, key=lambda name: -weight_format(name)["bits"])
    for changed, words in (
        *((replace(asked, weights=(name,)), f"--weights {name}") for name in smaller),
        (replace(asked, kv="fp8"), "--kv fp8"),
        *((_more(asked, by), f"{asked.cluster.domain * by} chips on one fast link") for by in (2, 4, 8)),
    ):
        if any(largest_batch(changed, name, tp) >= asked.batch for name in changed.weights for tp in degrees(changed)):
            yield words


def _more(asked: Asked, by: int) -> Asked:
    """The same with `by` times the chips in one domain."""
    own = asked.cluster
    return replace(asked, cluster=replace(own, per_node=own.per_node * by, domain=own.domain * by), tp=0)
