"""Remedies: where nothing fits, the smallest changes of a request that would, each of them searched and priced."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from burnish.cluster import Cluster
from burnish.errors import UserError
from burnish.job import TRAINED
from burnish.mapping import OFFLOAD
from burnish.planner.choice import Choice, choice
from burnish.planner.request import Request, fixed_words
from burnish.planner.search import search

DOUBLINGS = 8  # how often nodes are doubled, sequences and batches halved
SHORTEST = 128  # tokens
ADAPTER_RANK = 16


@dataclass(frozen=True)
class Remedy:
    """A change, in the words of an option, and the best mapping it allows."""

    change: str
    choice: Choice


def remedies(asked: Request) -> list[Remedy]:
    """The smallest change of each kind under which something fits, fastest first; none may help."""
    found = [remedy for ladder in ladders(asked) if (remedy := first_that_fits(ladder))]
    return sorted(found, key=lambda remedy: remedy.choice.seconds)


def ladders(asked: Request) -> Iterator[list[tuple[str, Request]]]:
    """Changes of one kind, smallest first."""
    for key in asked.fix:
        freed = {k: v for k, v in asked.fix.items() if k != key}
        yield [(f"without --fix {fixed_words({key: asked.fix[key]})}", replace(asked, fix=freed))]
    if len(asked.fix) > 1:
        yield [("without --fix", replace(asked, fix={}))]
    if asked.must_shrink or not asked.forward_gather:
        yield [("with forward gathers and any ZeRO stage", replace(asked, must_shrink=(), forward_gather=True))]
    if "offload" not in asked.fix and not asked.runnable:
        yield [
            (f"--fix offload={name}", replace(asked, fix={**asked.fix, "offload": OFFLOAD.index(name)}))
            for name in OFFLOAD[1:]
        ]
    if asked.trained == "all" and not (asked.runnable or asked.dialect):
        adapters = [(kind, replace(asked, trained=kind, lora_rank=ADAPTER_RANK)) for kind in TRAINED[1:]]
        yield [(f"--trained {kind} --lora-rank {ADAPTER_RANK}", changed) for kind, changed in adapters]
    there = asked.cluster
    more = [replace(there, nodes=there.nodes * 2**k) for k in range(1, DOUBLINGS + 1)]
    yield [(more_of(c, there, asked.device), replace(asked, cluster=c)) for c in more]
    shorter = [asked.seq // 2**k for k in range(1, DOUBLINGS + 1)]
    yield [(f"--seq {seq}", replace(asked, seq=seq)) for seq in shorter if seq >= SHORTEST]
    smaller = [asked.batch // 2**k for k in range(1, DOUBLINGS + 1)]
    yield [(f"--batch {batch}", replace(asked, batch=batch)) for batch in smaller if batch]


def more_of(larger: Cluster, there: Cluster, device: str) -> str:
    """A larger cluster in words; single cards are counted themselves."""
    if there.per_node == 1:
        return f"{larger.gpus} {device}s instead of {there.gpus}"
    return f"{larger.nodes} nodes of {larger.per_node} instead of {there.nodes}"


def first_that_fits(ladder: list[tuple[str, Request]]) -> Remedy | None:
    """The first change of a ladder under which something fits; changes that leave no mapping are passed over."""
    for change, asked in ladder:
        try:
            found = search(asked)
        except UserError:
            continue
        if found.count:
            return Remedy(change, choice(asked, found.mapping, found.price, int(found.order[0])))
    return None
