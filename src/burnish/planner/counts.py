"""Counts: how many GPUs of a cluster a mapping may use; fewer than all may suit a model and a batch better."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import islice
from math import gcd, prod

from burnish.planner.request import Request

LARGEST = 8  # how many of the largest counts that suit are tried
SMALL_ODD = 9  # odd factors up to this one are worth a try: pipeline stages may be uneven


@lru_cache(maxsize=4096)
def divisors(number: int) -> tuple[int, ...]:
    """Divisors of a positive number, ascending."""
    found, rest, prime = [1], number, 2
    while prime * prime <= rest:
        power = 1
        base = list(found)
        while rest % prime == 0:
            rest, power = rest // prime, power * prime
            found += [power * n for n in base]
        prime += 1
    return tuple(sorted({*found, *(rest * n for n in found)}))


def gpu_counts(asked: Request) -> list[int]:
    """How many GPUs a mapping may use: all, or where fewer are allowed also whole nodes and parts of one."""
    there = asked.cluster
    if asked.counts:
        return list(asked.counts)
    if not asked.fewer_gpus:
        return [there.gpus]
    even = {*divisors(there.per_node), *(there.per_node * n for n in divisors(there.nodes))}
    doubled = {2**k for k in range(there.per_node.bit_length())}
    doubled |= {there.per_node * 2**k for k in range(there.nodes.bit_length())}
    multiples = islice(_filled(asked, fixed_ranks(asked)), LARGEST)
    return sorted({*even, *doubled, *islice(_suiting(asked), LARGEST), *multiples})


def fixed_ranks(asked: Request) -> int:
    """Ranks that the fixed degrees make together."""
    return prod(asked.fix.get(axis, 1) for axis in ("tp", "pp", "dp", "cp"))


def _filled(asked: Request, ranks: int) -> Iterator[int]:
    """Multiples of some ranks that are whole nodes or within one, largest first."""
    there = asked.cluster
    nodes = ranks // gcd(ranks, there.per_node)
    yield from (there.per_node * n for n in range(there.nodes // nodes * nodes, 0, -nodes))
    yield from range(there.per_node // ranks * ranks, 0, -ranks)


def _suiting(asked: Request) -> Iterator[int]:
    """Counts that powers of two and a divisor of the batch, the heads, the layers or the experts make, largest first."""
    model = asked.model
    sizes = [asked.batch, *(int(size) for size in (model.heads, model.layers, model.experts) if size)]
    for count in _filled(asked, 1):
        odd = count // (count & -count)
        if odd <= SMALL_ODD or any(size % odd == 0 for size in sizes):
            yield count


def suited(asked: Request) -> bool:
    """Whether all GPUs suit a batch: what is odd in their number divides it."""
    every = asked.cluster.gpus
    return asked.batch % (every // (every & -every)) == 0


def fewer(asked: Request) -> tuple[int, ...]:
    """Counts below all GPUs that are worth a look: the next power of two that fills nodes, and where all of them suit a
    batch badly the largest that suits; none where counts were asked for."""
    if asked.fewer_gpus or asked.counts:
        return ()
    every = asked.cluster.gpus
    doubled = (count for count in _filled(asked, 1) if count < every and not count & (count - 1))
    best = (count for count in _suiting(asked) if count < every and not suited(asked))
    return tuple(sorted({*islice(doubled, 1), *islice(best, 1)}))
