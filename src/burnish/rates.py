"""Rates: how fast a chip, its links and a software stack really are, as few constants with a meaning each.

A constant is a share of a data-sheet figure, a time, or bytes moved for each element. They stand in `tables/rates.toml`
with what they mean, where they start from and how they were fitted; none belongs to a row or to a source of rows.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from burnish.cluster import Cluster
from burnish.hardware import Chip, generations
from burnish.job import Job
from burnish.mesh import N
from burnish.stack import Stack

# The data-sheet rate that a precision's matrix products run at.
STORED = ("unfused", "fused-softmax")  # attention kernels that write their scores to memory
LOW = ("fp8", "fp4")  # formats whose operands are cast from 16 bits
BLOCKS = ("fp8-block", "mxfp8", "nvfp4")  # precisions with a scale for each block
NIBBLE = 0.5  # bytes a parameter in 4 bits
FORMAT = {"fp8-block": "fp8", "mxfp8": "fp8", "nvfp4": "fp4"}


# A machine's own figures are what its products and copies reach, not what a data sheet promises.
MEASURED = {"memory": 1.0, **{f"matmul.cpu.{form}": 1.0 for form in ("fp32", "bf16", "fp16")}}


@dataclass(frozen=True)
class Rates:
    """What one job's work runs at; each a number, or an array with one entry per job."""

    matmul: N  # FLOP/s of linear layers of large shapes
    head: N  # FLOP/s of the 16-bit products that stay so
    attention: N  # FLOP/s of useful attention products, forward
    head_half: N  # head size at which attention runs at half its rate
    scan: N  # seconds of a state-space scan for those its products and tensors would take
    attention_backward: N  # share of it in backward
    matmul_backward: N  # share of the forward rate in backward
    grouped: N  # share of `matmul` for experts
    half: N  # cube root of the multiply-adds at which a product runs at half its rate
    memory: N  # byte/s
    traffic: N  # bytes really moved for each byte of the fused description, forward
    traffic_backward: N  # of backward, for each of forward
    norm: N  # further bytes an element of each norm's input moves
    score: N  # bytes an attention score moves, forward
    logit: N  # bytes a logit moves, forward and backward
    cast: N  # bytes an element of a product's input or output gradient moves to change format
    accumulate: N  # bytes a parameter and micro batch moves to add up its gradient
    routed: N  # bytes a routed element moves beside what is described
    launch: N  # seconds the host needs for a kernel
    launch_backward: N  # host time of backward for that of forward
    adapter_launches: N  # kernels a layer with adapters launches beside those described
    dequantize: N  # bytes a parameter moves to leave a 4-bit format, each way
    loose: N  # bytes an element moves where several kernels do what one could
    gap: N  # seconds between kernels on the device
    expert_launches: N  # kernels a routed layer launches beside those described
    update: N  # bytes a parameter moves in the optimizer's step
    tensor: N  # seconds a parameter tensor takes in the optimizer's step where each is distributed by itself
    step: N  # seconds a step takes beside all else
    host_link: N  # byte/s of a chip's way to host memory, where states are offloaded
    host_update: N  # parameters a second that a host's processors update, over all its chips
    trained: N  # 1 where weights get gradients
    link: N  # byte/s of the fast link
    link_latency: N
    network: N  # byte/s of a chip's share of the network
    network_latency: N
    rails: N  # exponent of what a group gains from the network shares of several of its ranks in a domain
    tp_shown: N  # share of tensor-parallel traffic that does not hide
    dp_hidden: N  # share of backward that gradient traffic may hide behind
    fsdp_hidden: N  # share of gathers and reductions of fully sharded layers that hides behind compute
    cp_shown: N
    ep_shown: N
    pp_shown: N
    fsdp_launches: N  # kernels' worth of host time that sharding a layer takes, each way
    reduce: N  # bytes of a gradient on its way
    whole: N  # 1 where ZeRO-1 sums whole gradients instead of scattering them
    gather: N  # bytes of a parameter on its way
    domain: N  # chips that share fast links
    per_node: N


@dataclass(frozen=True)
class Constant:
    """One constant: its value, what it means, where it starts from and how far a fit may carry it (log standard deviation)."""

    value: float
    meaning: str
    prior: float
    spread: float
    fitted: int = 1
    rows: int = 0  # published rows it acts on


@cache
def constants() -> dict[str, Constant]:
    """All constants by name."""
    path = Path(__file__).parent / "tables" / "rates.toml"
    rows = tomllib.loads(path.read_text(encoding="utf-8"))["constants"]
    return {name: Constant(**row) for name, row in rows.items()}


@cache
def values() -> Mapping[str, float]:
    """The constants' values by name."""
    return {name: constant.value for name, constant in constants().items()}


class Choice:
    """The constants that hold for one chip: its generation's own where there are some, else those of all."""

    def __init__(self, c: Mapping[str, float], chip: Chip) -> None:
        self.c = {**c, **MEASURED} if chip.measured else c
        self.kind = chip.architecture

    def __getitem__(self, name: str) -> float:
        return self.c[name]

    def first(self, *names: str) -> float:
        """The first constant there is; `{kind}` in a name is the chip's generation.

        Raises ValueError where there is none, as for a generation that no constant names.
        """
        for name in (name.format(kind=self.kind) for name in names):
            if name in self.c:
                return self.c[name]
        raise ValueError(f"chip architecture {self.kind!r}: no rates are known; known: {', '.join(generations())}")


def rates(job: Job, cluster: Cluster, stack: Stack, c: Mapping[str, float] | None = None) -> Rates:
    """The rates of a job on a cluster under a stack; `c` are the constants to use, by default the fitted ones."""
    chosen = Choice(c or values(), cluster.chip)
    return Rates(
        **_products(job, cluster.chip, stack, chosen),
        **_kernels(job, cluster.chip, stack, chosen),
        **_states(job, stack, chosen),
        **_traffic(cluster, stack, chosen),
    )


def _products(job: Job, chip: Chip, stack: Stack, c: Choice) -> dict[str, float]:
    """Rates of matrix products and attention."""
    form = FORMAT.get(job.precision, job.precision)
    half = chip.flops.get("bf16") or chip.flops.get("fp16") or chip.flops["fp32"]
    # 16-bit formats run on the same units; a generation without bf16 has constants of fp16
    alike = "bf16" if form == "fp16" else form
    own = (f"matmul.{{kind}}.{job.precision}", f"matmul.{{kind}}.{alike}", f"matmul.{alike}")
    kernel = stack.kernel(job.attention)
    stored = kernel in STORED
    head = half * c.first("matmul.{kind}.bf16", "matmul.{kind}.fp16", "matmul.bf16")
    flash = half * c.first(f"attention.{{kind}}.{kernel}", "attention.{kind}")
    return {
        "matmul": chip.flops.get(form, half) * c.first(*own),
        "head": head,
        "attention": head * c["attention.unfused"] if stored else flash,
        "attention_backward": c["attention.backward"],
        "head_half": c["attention.head"],
        "scan": c["scan"],
        "matmul_backward": c["matmul.backward"],
        "grouped": c["grouped.low" if form in LOW else "grouped"],
        "half": c["half"],
        "score": c[f"score.{kernel}"] if stored else 0.0,
        "trained": float(job.trained == "all"),
    }


def _kernels(job: Job, chip: Chip, stack: Stack, c: Choice) -> dict[str, float]:
    """Bytes that everything but products moves, and what it costs to launch it."""
    host = "eager" if stack.eager else "compiled" if stack.compiled else "lean"
    routing = c[f"routing.{stack.routing}"]
    low = FORMAT.get(job.precision, job.precision) in LOW
    hooked = stack.eager and stack.kind in ("fsdp", "plain")
    return {
        "memory": chip.bandwidth * c["memory"],
        "traffic": c["traffic.lean" if stack.fused_chains else f"traffic.{host}"],
        "traffic_backward": c["traffic.backward"],
        "norm": 0.0 if stack.fused_norm else c["norm.unfused"],
        "loose": c["loose"],
        "logit": c[f"logit.{stack.loss}"],
        "cast": c["cast.block" if job.precision in BLOCKS else "cast.tensor"] if low else 0.0,
        "routed": c["routed"] * routing,
        "dequantize": c["dequantize"] if job.trained == "qlora" else 0.0,
        "launch": c[f"launch.{host}"],
        "launch_backward": c["launch.backward"],
        "gap": c["gap"],
        "adapter_launches": c["adapter_launches"] if job.trained != "all" and job.lora_rank else 0.0,
        "expert_launches": c["expert_launches"] * routing,
        "fsdp_launches": c["fsdp_launches"] if hooked else 0.0,
    }


def _states(job: Job, stack: Stack, c: Choice) -> dict[str, float]:
    """What weights, gradients and optimizer state move; frozen weights have neither of the others."""
    frozen, layers_only = job.trained != "all", job.optimizer == "none"
    return {
        "accumulate": 0.0 if frozen else c["accumulate"],
        "update": 0.0 if frozen or layers_only else c["update.eager" if stack.eager else "update.fused"],
        "tensor": c["update.tensor"] if stack.per_parameter else 0.0,
        "step": 0.0 if layers_only else c["step.eager" if stack.eager else "step"],
        "host_link": c["host.link"],
        "host_update": c["host.update"],
        "whole": float(stack.whole_reduce),
        "reduce": 0.0 if frozen else stack.gradient,
        "gather": NIBBLE if job.trained == "qlora" else stack.parameter,
    }


def _traffic(cluster: Cluster, stack: Stack, c: Choice) -> dict[str, float]:
    """Links, and what hides behind what."""
    return {
        "link": cluster.link.bandwidth * c.first("link.{kind}", "link"),
        "link_latency": c["link.latency"],
        "network": cluster.network.bandwidth * c["network"],
        "network_latency": c["network.latency"],
        "rails": c["network.rails"],
        "domain": cluster.domain,
        "per_node": cluster.per_node,
        "tp_shown": 1 - c["hidden.tp"] if stack.tp_overlap else 1.0,
        "dp_hidden": c["hidden.dp"] if stack.dp_overlap else c["hidden.dp.plain"],
        "fsdp_hidden": c["hidden.fsdp"],
        "cp_shown": 1 - c["hidden.cp"],
        "ep_shown": c["shown.ep"] * c[f"routing.{stack.routing}"],
        "pp_shown": c["shown.pp"],
    }
