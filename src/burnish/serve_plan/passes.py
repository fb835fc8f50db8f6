"""Passes: seconds of a prompt and of a token, on one group of chips that share a decoder.

A roofline of the whole pass (Williams et al. 2009; for decoding Pope et al. 2022, arXiv 2211.05102): the longer of its products and
its traffic, beside a time of each layer and two all-reduces a layer (Shoeybi et al. 2019, arXiv 1909.08053, section 3).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from burnish.architecture import Architecture
from burnish.cluster import Cluster
from burnish.errors import UserError
from burnish.hardware import Chip
from burnish.links import Group, ring_seconds
from burnish.parameters import active_parameters, attending
from burnish.rates import Choice, values
from burnish.serve_plan.sizes import HALF, kv_bytes, read_bytes, tables, weight_format
from burnish.timing import CAUSAL, longer

REDUCES = 2  # all-reduces of a layer: behind attention, and behind the feed-forward part


@dataclass(frozen=True)
class Serving:
    """How a decoder is served. `kv` is bytes of an element of keys and values."""

    model: Architecture
    cluster: Cluster
    weights: str = "bf16"
    kv: int = HALF
    tp: int = 1
    pp: int = 1
    engine: str = "fused-2023"


def constants(engine: str) -> dict[str, float]:
    """The constants of a generation of engines. Raises UserError naming the known ones."""
    known = tables()["engines"]
    if engine not in known:
        raise UserError(f"--engine {engine!r}: unknown; known: {', '.join(known)}")
    return {name: value for name, value in known[engine].items() if isinstance(value, float)}


def product_rate(chip: Chip, weights: str) -> float:
    """FLOP/s that products of weights of a format reach. Raises UserError where nothing is known of the chip's rate."""
    chosen = Choice(values(), chip)
    form = weight_format(weights)["compute"]
    if form not in chip.flops:
        form = next((name for name in ("bf16", "fp16", "fp32") if name in chip.flops), "")
    if not form:
        raise UserError(
            f"chip {chip.name!r}: its rate is not known; measure it with: burnish hardware probe --save here.toml"
        )
    alike = "bf16" if form == "fp16" else form
    return chip.flops[form] * chosen.first(f"matmul.{{kind}}.{form}", f"matmul.{{kind}}.{alike}", f"matmul.{alike}")


def tensor_group(serving: Serving, reduce: float) -> Group:
    """The chips that share a layer; `reduce` seconds of an all-reduce inside a node, and the network's own beyond."""
    c, cluster = Choice(values(), serving.cluster.chip), serving.cluster
    inside = min(serving.tp, cluster.domain)
    link = cluster.link.bandwidth * c.first("link.{kind}", "link")
    if inside == serving.tp:
        return Group(serving.tp, inside, link, reduce)
    network = cluster.network.bandwidth * c["network"] * inside ** c["network.rails"]
    return Group(serving.tp, inside, min(link, network), reduce + c["network.latency"])


def pass_seconds(s: Serving, rows: int, tokens: int, context: int, c: Mapping[str, float] | None = None) -> float:
    """Seconds of one pass of `rows` sequences of `tokens` new tokens each, behind which `context` positions stand in all.

    `c` are constants of the engine to use instead of the table's.
    """
    c = c or constants(s.engine)
    model, chip = s.model, s.cluster.chip
    if chip.bandwidth <= 0:
        raise UserError(
            f"chip {chip.name!r}: its bandwidth is not known; measure it with: burnish hardware probe --save here.toml"
        )
    total, hidden = rows * tokens, int(model.hidden)
    layers = int(model.layers)
    head = int(model.vocab) * hidden
    flops = 2 * total * (int(active_parameters(model)) - head) / s.tp + 2 * rows * head / s.tp
    # the side of a usual product: small ones fill the chip less
    side = np.cbrt(total * hidden * max(hidden, int(model.ffn) or int(model.expert_ffn)) / s.tp)
    rate = product_rate(chip, s.weights) * c["compute"]
    choice = Choice(values(), chip)
    products = flops / rate * (1 + choice["half"] / side)
    scores = 4 * total * context * int(model.heads) * int(model.head_dim) * int(attending(model)) / s.tp
    if tokens > 1:
        half = chip.flops.get("bf16") or chip.flops.get("fp16") or chip.flops["fp32"]
        products += scores * CAUSAL / (half * choice.first("attention.{kind}"))
    weights, cache = read_bytes(model, s.weights, total, s.tp), kv_bytes(model, rows * context, s.kv, s.tp)
    traffic = weights / (chip.bandwidth * c["memory"]) + cache / (chip.bandwidth * c["cache"])
    layer = c["prompt"] if tokens > 1 else c["layer"]
    return float(longer(products, traffic) + layers * layer + c["step"] + rows * c["row"]) + reduce_seconds(s, total, c)


def reduce_seconds(s: Serving, tokens: int, c: Mapping[str, float]) -> float:
    """Seconds of a pass's all-reduces of 16-bit hidden states."""
    calls = REDUCES * int(s.model.layers)
    size = calls * tokens * int(s.model.hidden) * HALF
    return float(ring_seconds(tensor_group(s, c["reduce"]), size, calls, 2)) if s.tp > 1 else 0.0


def prefill_seconds(s: Serving, batch: int, prompt: int, c: Mapping[str, float] | None = None) -> float:
    """Seconds from the prompts to the first tokens; over pipeline stages, in as many parts as there are stages or sequences."""
    parts = min(s.pp, batch)
    once = pass_seconds(replace(s, pp=1), -(-batch // parts), prompt, prompt, c) / s.pp
    return once * (parts + s.pp - 1)


def decode_seconds(s: Serving, batch: int, context: int, c: Mapping[str, float] | None = None) -> float:
    """Seconds of one token of every sequence; with stages each works on its part in turn."""
    parts = min(s.pp, batch)
    return pass_seconds(replace(s, pp=1), -(-batch // parts), 1, context, c)


def total_seconds(s: Serving, batch: int, prompt: int, new: int, c: Mapping[str, float] | None = None) -> float:
    """Seconds of a static batch from its prompts to its last tokens; the first one comes out of the prompts' pass."""
    return prefill_seconds(s, batch, prompt, c) + (new - 1) * decode_seconds(s, batch, prompt + new // 2, c)
