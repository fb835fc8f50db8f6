"""Legal: which degrees of parallelism a model, a batch and a cluster allow, and in words what is wrong with others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import NamedTuple

from burnish.errors import UserError
from burnish.planner.counts import divisors, gpu_counts
from burnish.planner.request import Request

# What is worth trying: a rank with fewer tokens of a sequence gains nothing from a further split, and tensor parallelism
# over more domains of fast links only gets slower.
TOKENS_PER_RANK, DOMAINS_OF_TP = 2048, 2


class Degrees(NamedTuple):
    """Ranks of each axis."""

    tp: int
    pp: int
    dp: int
    cp: int
    ep: int
    etp: int


def degrees(asked: Request, every: bool = False) -> list[Degrees]:
    """The legal degrees that are worth trying, or `every` one; axes that are fixed are tried at any legal value.

    Context parallelism that leaves a rank too few tokens is tried only where it is fixed.
    """
    model, found = asked.model, []
    for gpus in gpu_counts(asked):
        for tp in _tensor(asked, gpus, every):
            for pp, cp in product(divisors(gpus // tp), repeat=2):
                dp, rest = divmod(gpus // tp, pp * cp)
                if rest or pp > model.layers or asked.batch % dp:
                    continue
                if cp > 1 and (asked.seq % (2 * cp) or not ("cp" in asked.fix or _long(asked, cp))):
                    continue
                found += [Degrees(tp, pp, dp, cp, *split) for split in _experts(asked, tp * dp * cp, every)]
    return [d for d in found if not asked.runnable or _runs(asked, d)]


def _runs(asked: Request, d: Degrees) -> bool:
    """Whether `burnish train` has these: whole sequences and experts, every stage with micro batches enough, tokens even."""
    cut = bool(int(asked.model.experts)) and d.tp > 1
    whole = (d.cp, d.ep, d.etp) == (1, 1, 1) and not cut
    return whole and asked.batch // d.dp >= d.pp and asked.seq % d.tp == 0


def _tensor(asked: Request, gpus: int, every: bool) -> list[int]:
    """Heads are whole on a rank; key-value heads are, or are repeated evenly."""
    heads, kv_heads, ffn = int(asked.model.heads), int(asked.model.kv_heads), int(asked.model.ffn)
    most = gpus if every or "tp" in asked.fix else DOMAINS_OF_TP * asked.cluster.domain
    whole = [tp for tp in divisors(gpus) if tp <= most and heads % tp == 0 and ffn % tp == 0]
    return [tp for tp in whole if kv_heads % tp == 0 or tp % kv_heads == 0]


def _long(asked: Request, cp: int) -> bool:
    return asked.seq // cp >= TOKENS_PER_RANK


def _experts(asked: Request, ranks: int, every: bool) -> list[tuple[int, int]]:
    experts = int(asked.model.experts)
    if not experts:
        return [(1, 1)]
    split = divisors(int(asked.model.expert_ffn)) if every or "etp" in asked.fix else [1]
    return [(ep, etp) for ep in divisors(experts) for etp in split if ranks % (ep * etp) == 0]


def fixed_degrees(asked: Request) -> list[Degrees]:
    """Those worth trying that have what is fixed; where there are none, all legal ones that do.

    Raises UserError with legal values where no mapping has what is fixed.
    """
    kept = with_fixed(asked, degrees(asked)) or with_fixed(asked, degrees(asked, every=True))
    if refused := why_illegal(asked, asked.fix):
        raise UserError(f"--fix {refused}")
    if not kept:
        raise UserError(_none(asked))
    return kept


def with_fixed(asked: Request, found: list[Degrees]) -> list[Degrees]:
    """Those degrees that have what is fixed."""
    return [d for d in found if _has(d, asked.fix)]


def _none(asked: Request) -> str:
    gpus = asked.cluster.gpus
    if ranks := _any_ranks(asked, asked.fix):
        many = max((n for n in ranks if n <= asked.batch), default=ranks[0])
        near = max(round(asked.batch / many), 1) * many
        return (
            f"--batch {asked.batch}: dp must divide it, and with all {gpus:,} GPUs dp is one of {_listed(ranks)}; "
            f"--batch {near} works, or --gpus-free"
        )
    return f"no mapping uses all {gpus:,} GPUs: {rule(asked, 'tp')}; use another number of nodes, or --gpus-free"


def _any_ranks(asked: Request, values: Mapping[str, int]) -> list[int]:
    """Data-parallel ranks that mappings with these values would have if the batch did not matter."""
    # every number of ranks divides a batch of 0
    free = degrees(replace(asked, batch=0, fix={**asked.fix, **values}), every=True)
    return sorted({d.dp for d in free if _has(d, values)})


def _has(d: Degrees, values: Mapping[str, int]) -> bool:
    return all(getattr(d, key) == value for key, value in values.items() if key in Degrees._fields)


def rule(asked: Request, key: str) -> str:
    """What a value of an axis must satisfy, in words."""
    model, counts = asked.model, gpu_counts(asked)
    many = f"the {counts[-1]:,} GPUs" if len(counts) == 1 else f"one of {_listed(counts)} GPUs"
    part = f", and tp x pp x dp x cp is {many}"
    experts = f"ep divides the {model.experts} experts, and ep x etp the ranks of a stage"
    rules = {
        "tp": f"tp divides {model.heads} heads and divides or is a multiple of {model.kv_heads} key-value heads" + part,
        "pp": f"pp is at most the {model.layers} layers" + part,
        "dp": f"dp divides the batch of {asked.batch} sequences" + part,
        "cp": f"2 x cp divides the {asked.seq} tokens of a sequence" + part,
        "ep": experts if model.experts else f"{model.name} has no experts",
        "etp": experts if model.experts else f"{model.name} has no experts",
        "micro_batch": "it divides the sequences of a data-parallel rank in a step",
        "vpp": "pp is above 1 and divides the micro batches, and pp x vpp is at most the layers",
        "shard": "it divides dp x cp",
    }
    return rules[key]


def why_illegal(asked: Request, values: Mapping[str, int]) -> str | None:
    """Why no mapping has these values, with the legal ones, one line; None where one has."""
    kept, settled = degrees(asked, every=True), ""
    if not kept:
        return None
    so_far: dict[str, int] = {}
    for key in (key for key in values if key in Degrees._fields):
        legal = sorted({getattr(d, key) for d in kept})
        kept, so_far[key] = [d for d in kept if getattr(d, key) == values[key]], values[key]
        if not kept:
            reason = _other_reason(asked, so_far) or rule(asked, key)
            return f"{key}={values[key]}{settled}: {reason}; legal: {_listed(legal)}"
        settled = f"{settled + ',' if settled else ' with'} {key}={values[key]}"
    for key, of in (("micro_batch", _micro_batches), ("vpp", _chunks), ("shard", _shards)):
        if key in values and values[key] not in (legal := sorted({n for d in kept for n in of(asked, d)})):
            return f"{key}={values[key]}{settled}: {rule(asked, key)}; legal: {_listed(legal)}"
    return None


def _other_reason(asked: Request, values: Mapping[str, int]) -> str:
    """What else than its own rule keeps a value from being legal: other options, or a batch that no dp left divides."""
    freed = replace(asked, runnable=False)
    if asked.runnable and any(_has(d, values) for d in degrees(freed, every=True)):
        return "--runnable keeps to what burnish train has"
    if "dp" in values or not (ranks := _any_ranks(asked, values)):
        return ""
    return f"dp would be {_listed(ranks, word=' or ')}, which the batch of {asked.batch:,} sequences does not divide by"


def _listed(values: Sequence[int], most: int = 12, word: str = ", ") -> str:
    if len(values) == 2:
        return word.join(map(str, values))
    shown = ", ".join(map(str, values[:most]))
    return f"{shown}, ... {values[-1]}" if len(values) > most else shown


def _micro_batches(asked: Request, d: Degrees) -> Sequence[int]:
    return divisors(asked.batch // d.dp)


def _chunks(asked: Request, d: Degrees) -> Sequence[int]:
    """Interleaving takes micro batches in rounds of pp."""
    rounds = d.pp > 1 and asked.batch // d.dp % d.pp == 0
    return range(1, int(asked.model.layers) // d.pp + 1) if rounds else [1]


def _shards(asked: Request, d: Degrees) -> list[int]:
    return [0, *divisors(d.dp * d.cp)]
