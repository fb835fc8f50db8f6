"""Claim: tensor parallelism stays in a node, a pipeline crosses nodes, data parallelism takes the rest; links decide it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from burnish.mapping import RECOMPUTE, Mapping
from burnish.parameters import parameters
from burnish.planner import ModelPlan, Request, plan_model, request
from burnish.planner.choice import in_words
from burnish.prove.claim import Verdict
from burnish.units import show

MODEL, NODES, ONE_DOMAIN, SEQ, BATCH = "llama3-70b", "h100-sxm:8x8", "h100-sxm:1x64", 8192, 64
FIXED = {"zero": 1, "recompute": RECOMPUTE.index("none")}
ASKED = {
    "tp 64": {"tp": 64},
    "dp 64": {"dp": 64},
    "tp 8 x dp 8": {"tp": 8, "dp": 8},
    "tp 8 x pp 8": {"tp": 8, "pp": 8},
}
TOLERANCE = 0.02  # norms are whole on each rank and counted as if they were split
# All-gathers and reduce-scatters of a layer's tokens: two of each forward and backward, and two to see its inputs again.
HALVES = 10
ENDS = 2  # of them at the embedding, and as many at the loss

Send = tuple[int, int, float]  # from rank, to rank, bytes


def ring(ranks: Sequence[int], size: float) -> Iterator[Send]:
    """An all-gather to, or a reduce-scatter of, `size` bytes: each rank passes all parts but one to its neighbour."""
    for place, rank in enumerate(ranks):
        yield rank, ranks[(place + 1) % len(ranks)], size * (len(ranks) - 1) / len(ranks)


def sends(asked: Request, m: Mapping) -> Iterator[Send]:
    """What every rank sends in one step of a dense decoder; ranks are numbered tensor parallel first, pipeline last."""
    tp, dp, pp = int(m.tp), int(m.dp), int(m.pp)
    model, stage = asked.model, tp * dp
    micro_batches = asked.batch // (dp * int(m.micro_batch))
    tokens = 2 * int(m.micro_batch) * asked.seq * int(model.hidden)  # bytes of a micro batch between layers
    held = int(parameters(model)) / (tp * pp)
    for first in range(0, stage * pp, tp):
        ends = ENDS * ((first < stage) + (first >= stage * (pp - 1)))
        sums = HALVES * int(model.layers) / pp + ends
        yield from ring(range(first, first + tp), sums * micro_batches * tokens)
    for first in (s * stage + t for s in range(pp) for t in range(tp)):
        group = range(first, first + stage, tp)
        yield from ring(group, held * (asked.profile.gradient + asked.profile.parameter))
    chunks = int(m.vpp) * pp
    for here in range(chunks - 1):
        for rank in range(stage):
            a, b = here % pp * stage + rank, (here + 1) % pp * stage + rank
            yield from ((a, b, micro_batches * tokens / tp), (b, a, micro_batches * tokens / tp))


def counted(asked: Request, m: Mapping) -> float:
    """Bytes of those sends that leave a node."""
    node = asked.cluster.domain
    return sum(size for a, b, size in sends(asked, m) if a // node != b // node)


def plans() -> tuple[ModelPlan, ModelPlan]:
    """The same job on eight nodes, with four mappings asked about, and on one domain of fast links."""
    nodes, whole = (request(MODEL, there, SEQ, BATCH, fix=FIXED) for there in (NODES, ONE_DOMAIN))
    return plan_model(nodes, list(ASKED.values())), plan_model(whole)


def measure() -> Verdict:
    """Search both clusters, and count the bytes between nodes send by send."""
    nodes, whole = plans()
    others = [asked.choice for asked in nodes.why_not]
    picks = [plan.pick for plan in (nodes, whole)]
    assert picks[0] is not None
    assert picks[1] is not None
    pick, wide = picks[0].mapping, picks[1].mapping
    sent, off, lines = [], 0.0, []
    for name, other in zip(ASKED, others, strict=True):
        assert other is not None
        seen = counted(nodes.request, other.mapping)
        off = max(off, abs(other.cross_node_bytes - seen) / max(seen, 1.0))
        sent.append(seen)
        fit = f"{show(other.seconds, 'seconds')} a step" if other.fits else "does not fit"
        lines.append(f"{name}: {show(seen, 'bytes')}, {fit}")
    inside = pick.tp <= nodes.request.cluster.domain
    fewest = sent[0] > 10 * max(sent[1:])
    unfit = not (others[1] and others[1].fits)
    changed = (pick.tp, pick.pp, pick.dp, pick.cp) != (wide.tp, wide.pp, wide.dp, wide.cp)
    return Verdict(
        claim="mapping",
        statement="70 billion parameters on 8 nodes of 8: tensor parallelism inside a node, a pipeline or data parallelism "
        "across nodes. Tensor parallelism over nodes sends the most and data parallelism alone does not fit.",
        varied="the mapping; then the links: one domain of 64 in place of 8 of 8",
        held=f"{MODEL}, {BATCH} x {SEQ} tokens, ZeRO 1, no recompute",
        expected=f"tp at most 8; tp 64 sends over ten times more between nodes than each other; planner within {TOLERANCE:.0%}",
        measured=f"pick {in_words(pick)}; between nodes {'; '.join(lines)}; planner within {off:.1%}; "
        f"one domain of 64: {in_words(wide)}",
        holds=bool(inside and fewest and unfit and off <= TOLERANCE and changed),
        why="A layer's tensor-parallel sums are as large as its input and stand between two products; over nodes nothing hides "
        "them. A pipeline passes that input once a stage, and data parallelism gradients once a step.",
        source="Narayanan et al. 2021, arXiv 2104.04473, section 5.4",
        code="src/burnish/planner/, src/burnish/price.py",
    )
