"""A job on a cluster whose rates tests set as they need them."""

from __future__ import annotations

from dataclasses import replace

from burnish.architecture import Architecture
from burnish.cluster import Cluster, cluster
from burnish.job import Job
from burnish.rates import Rates, rates
from burnish.stack import nearest_stack

# Odd enough that no two sizes can be taken for each other.
MODEL = Architecture("small", vocab=50304, hidden=4096, layers=32, heads=32, kv_heads=8, head_dim=128, ffn=14336)
JOB = Job(MODEL, seq=4096, global_batch=64)
STACK = nearest_stack("megatron-core-2026")[0]
NODES = "h100-sxm:8x8"


def machine(text: str = NODES) -> Cluster:
    """A cluster by its text."""
    return cluster(text)


def rates_of(text: str = NODES, **changes: float) -> Rates:
    """The rates of the job, some of them changed."""
    return replace(rates(JOB, machine(text), STACK), **changes)
