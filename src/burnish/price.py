"""Price: a job, a mapping, a cluster and a stack -> seconds of one optimizer step, with their causes.

Everything is arithmetic on numbers or arrays: thousands of candidate mappings of one job, or thousands of published runs
of different jobs, are one call.
"""

from __future__ import annotations

from collections.abc import Mapping as Table
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Protocol

import numpy as np

from burnish.architecture import Architecture
from burnish.cluster import Cluster
from burnish.columns import columns
from burnish.describe import Shapes, describe
from burnish.job import Job
from burnish.mapping import Mapping
from burnish.mesh import N, pick
from burnish.rates import STORED, rates
from burnish.stack import Stack
from burnish.step_time import Step, mesh_of, stages, step
from burnish.techniques import checkpointing, context, experts, pipeline, tensor
from burnish.work import Bytes, Work


class Setting(Protocol):
    """One thing to price."""

    @property
    def job(self) -> Job: ...
    @property
    def mapping(self) -> Mapping: ...
    @property
    def cluster(self) -> Cluster: ...
    @property
    def stack(self) -> Stack: ...


def price(job: Job, mapping: Mapping, cluster: Cluster, stack: Stack) -> Step:
    """Seconds, causes and bytes across domains of one step of a job, for one mapping or for arrays of candidates."""
    work, staged = layout(job.model, shapes_of(job, mapping, stack), mapping, stack)
    return step(work, staged, mapping, rates(job, cluster, stack), stack)


def price_many(settings: Sequence[Setting], c: Table[str, float] | None = None) -> N:
    """Seconds of many settings, in order."""
    seconds = np.zeros(len(settings))
    for members in alike(settings):
        table = [settings[k] for k in members]
        mapping = columns([s.mapping for s in table])
        stack = columns([s.stack for s in table])
        work, staged = laid_out(table)
        r = columns([rates(s.job, s.cluster, s.stack, c) for s in table])
        seconds[members] = step(work, staged, mapping, r, stack).seconds
    return seconds


def layout(model: Architecture, shapes: Shapes, mapping: Mapping, stack: Stack) -> tuple[Work, Work]:
    """The work of one rank before its stage is cut out, and of each of three stages."""
    mesh = mesh_of(mapping, 0, stages(mapping))
    size = Bytes(stack.parameter, 2, stack.gradient, stack.optimizer, 0, 2, logit=stack.logits_bytes)
    work = replace(describe(model, shapes, stack), bytes=size)
    work = tensor.predict(SimpleNamespace(sequence=mapping.sp), work, mesh)
    work = context.predict(None, work, mesh)
    work = experts.predict(None, work, mesh)
    work = checkpointing.mapped(work, mapping.recompute)
    return work, pipeline.predict(SimpleNamespace(schedule=mapping.schedule, cut=stack.balanced), work, mesh)


def alike(settings: Sequence[Setting]) -> list[list[int]]:
    """Indices of settings that can be described together: their models have the same parts."""
    kinds: dict[tuple[bool, ...], list[int]] = {}
    for k, setting in enumerate(settings):
        model = setting.job.model
        parts = (model.experts, model.kv_rank, model.mixer_layers, model.positions, setting.stack.chunked_loss)
        kinds.setdefault(tuple(bool(part) for part in parts), []).append(k)
    return list(kinds.values())


def laid_out(settings: Sequence[Setting]) -> tuple[Work, Work]:
    """The layouts of settings that are alike, as arrays."""
    model = columns([s.job.model for s in settings])
    shapes = columns([shapes_of(s.job, s.mapping, s.stack) for s in settings])
    return layout(model, shapes, columns([s.mapping for s in settings]), columns([s.stack for s in settings]))


def shapes_of(job: Job, mapping: Mapping, stack: Stack) -> Shapes:
    """The micro batch of a mapping."""
    micro = np.maximum(job.global_batch // (mapping.dp * mapping.micro_batch), 1)
    pairs = mapping.micro_batch * attended(job.model, job.seq) * job.filled
    stored = int(stack.kernel(job.attention) in STORED)
    return Shapes(mapping.micro_batch, job.seq, micro, pairs=pairs, scores=stored)


def attended(model: Architecture, seq: N) -> N:
    """Pairs of tokens in one sequence, twice those that a causal mask leaves, as a mean over the attention layers.

    A window of w tokens leaves seq w - w^2/2 pairs of them (Beltagy et al. 2020, arXiv 2004.05150).
    """
    layers = pick(np.asarray(model.attention_layers) >= 0, model.attention_layers, model.layers)
    window = np.minimum(pick(np.asarray(model.window) > 0, model.window, seq), seq)
    share = model.windowed_layers / np.maximum(layers, 1)
    return (1 - share) * seq * seq + share * (2 * seq * window - window * window)
