"""Claim: one pool of pages serves sequences of varying lengths without another allocation of keys and values, and wastes little."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.profiler import ProfilerActivity, profile

from burnish.config import ModelConfig
from burnish.pool_size import position_bytes
from burnish.prove.claim import Verdict
from burnish.serve.cache_ways import Grown, Padded, Pooled, Trace, Way, drive, varied
from burnish.units import show

REQUESTS, ROWS, LONGEST, PAGE = 40, 8, 192, 16
PASSING = 2**12  # bytes under which an allocation is no cache: numbers of slots, which are gone after the write


@dataclass(frozen=True)
class Seen:
    """Allocations of keys and values during the trace and their bytes; most positions reserved and the waste over the trace."""

    allocations: int
    allocated: int
    reserved: int
    waste: float


def small_model() -> ModelConfig:
    """Keys and values of which a few positions are larger than what passes by."""
    return ModelConfig(vocab=64, hidden=256, ffn=64, heads=4, kv_heads=4, head_dim=64, layers=2, max_positions=LONGEST)


def most_positions(trace: Trace, page: int) -> int:
    """Of the rows that take most at once, each filled up to whole pages."""
    whole = sorted((-(-sum(one) // page) * page for one in trace), reverse=True)
    return sum(whole[:ROWS])


def observed(way: Way, trace: Trace) -> Seen:
    """One run, after one for warm-up."""
    drive(way, small_model(), trace, ROWS)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        steps = drive(way, small_model(), trace, ROWS)
    results = found.profiler
    assert results is not None
    sizes = [event.nbytes() for event in results.kineto_results.events() if event.name() == "[memory]"]
    made = [size for size in sizes if size >= PASSING]
    reserved, used = (sum(column) for column in zip(*steps, strict=True))
    return Seen(len(made), sum(made), max(step[0] for step in steps), reserved / used - 1)


def grown_bytes(trace: Trace) -> int:
    """Bytes that are allocated where every position copies all before it: two tensors a layer."""
    one = position_bytes(small_model(), torch.float32.itemsize)
    copies = [one * length for prompt, rest in trace for length in range(prompt, prompt + rest + 1)]
    tensors = 2 * small_model().layers
    return sum(size for size in copies if size // tensors >= PASSING)


def line(name: str, seen: Seen) -> str:
    """The figures of one way."""
    return f"{name}: {seen.allocations:,} allocations, {show(seen.allocated, 'bytes')}, {100 * seen.waste:.1f} % reserved unused"


def measure() -> Verdict:
    """The same trace through a pool, tensors that grow, and tensors of the longest length."""
    trace, shape = varied(REQUESTS, LONGEST), small_model()
    pages = most_positions(trace, PAGE) // PAGE
    pooled, grown, padded = (
        observed(way, trace) for way in (Pooled(shape, pages, PAGE), Grown(shape), Padded(shape, LONGEST))
    )
    wasted = (
        ROWS * PAGE / (sum(map(sum, trace)) / REQUESTS * ROWS)
    )  # less than a page a sequence, over a usual one's length
    return Verdict(
        claim="pool",
        statement="A pool of pages, made once, holds keys and values of sequences of varying lengths: no allocation after "
        "the first, less than one page wasted a sequence. Tensors that grow are copied with every token; tensors as long as "
        "the longest sequence hold memory that is never written.",
        varied="where keys and values lie: pages of a pool, a tensor a sequence that grows, a tensor of the longest length",
        held=f"{REQUESTS} requests of {min(map(sum, trace))} to {max(map(sum, trace))} positions, {ROWS} at once, seed 0",
        expected=f"pool: 0 allocations, under {100 * wasted:.1f} % unused; grown: {show(grown_bytes(trace), 'bytes')}; "
        f"padded: more than the pool's waste and {ROWS * LONGEST} positions",
        measured=f"{line('pool', pooled)}; {line('grown', grown)}; {line('padded', padded)}, {padded.reserved} positions",
        holds=pooled.allocations == 0
        and pooled.waste < wasted < padded.waste
        and grown.allocated == grown_bytes(trace)
        and padded.reserved == ROWS * LONGEST,
        why="What a sequence will need is unknown when it begins. A page is a small promise: the next one is taken when it is "
        "needed, from any place, since attention finds positions through the list of a sequence's pages.",
        source="Kwon et al. 2023, arXiv 2309.06180, sections 3.1 and 4.2",
        code="src/burnish/serve/pages.py, src/burnish/serve/paged.py, src/burnish/serve/cache_ways.py",
    )
