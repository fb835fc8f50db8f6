"""Sizes: bytes an element of everything a rank holds, from a job's formats, its stack and its chip.

Plain numbers, so that those of many jobs can be put into arrays and priced in one call.
"""

from __future__ import annotations

from dataclasses import dataclass

from burnish.hardware import GIB, Chip
from burnish.job import Job
from burnish.mesh import N
from burnish.stack import Stack

MIB = 2**20
WIDEST = 4  # bytes of a float32
MASTER, MOMENTS = 4, 8  # a float32 copy of a parameter; Adam's two moments (Kingma and Ba 2015) in float32
# Adapters are few and stay in 32 bits: weight, gradient and two moments (QLoRA, arXiv 2305.14314, section 3); where a stack
# keeps nothing in 32 bits, neither does it of adapters.
ADAPTER = 16.0
# A 4-bit weight and its share of the scales, one for 64 of them: in float32, or in 8 bits with one float32 for 256 scales
# (QLoRA, arXiv 2305.14314, section 3, double quantization: 0.5 and 0.127 bits a weight).
FOUR_BIT = (0.5 + 4 / 64, 0.5 + 1 / 64 + 4 / (64 * 256))
# What an optimizer keeps of Adam's two moments.
KEPT = {
    "none": 0.0,
    "sgd": 0.5,  # momentum
    "adafactor": 0.0,  # a row and a column of each matrix (Shazeer and Stern 2018, arXiv 1804.04235)
    "adamw-8bit": 0.25,  # Dettmers et al. 2022, arXiv 2110.02861
    "muon": 0.5,  # momentum
}
# Workspaces of matrix products: cuBLAS as PyTorch asks for it, and the layers of Transformer Engine, by architecture.
# PyTorch: ATen/cuda/CublasHandlePool.cpp; Transformer Engine: cpp_extensions/gemm.py.
LARGE_WORKSPACE, SMALL_WORKSPACE, SMALL_ENGINE_WORKSPACE = 32 * MIB, 8.125 * MIB, 4 * MIB
LOW = ("fp8", "fp8-block", "mxfp8", "nvfp4")
LARGE_SINCE = ("hopper", "blackwell", "blackwell-ultra")
GROUPED_STREAMS = 4  # further workspaces of Transformer Engine for grouped products, one a stream
CHUNK = 512  # tokens whose logits a chunked loss has at a time


@dataclass(frozen=True)
class Sizes:
    """Bytes an element (or a share, a count, bytes in all where it says so); each a number or an array."""

    parameter: N  # of a trained weight as it is stored, split where parameters are
    copy: N  # of a 16-bit copy made from it: whole under ZeRO-0 to 2, gathered under ZeRO-3
    gradient: N
    gradients_stay: N  # 1 where they stand in buffers of their own, 0 where each step makes them anew
    optimizer: N
    optimizer_table: N  # ... of an embedding, head or norm
    whole_tensors: N  # 1 where tensors are dealt to ranks whole; the fullest rank has the tables
    weight_casts: N  # of low-precision copies of a weight that stay between steps
    frozen: N  # of a weight of a matrix product that is not trained
    frozen_table: N  # of an embedding, head or norm that is not trained
    flat_gradient: N  # of a frozen weight that shares a flat buffer with adapters
    trained: N  # 1 where all weights are trained
    adapter: N  # of an adapter, all its states
    rank: N  # of adapters
    step_gradient: N  # beside an owned parameter while the optimizer runs: a float32 gradient
    step_copy: N  # ... and what its arithmetic makes
    activation: N
    norm: N  # beyond an input of a norm
    glue: N  # beyond a layer's tokens
    act: N  # beyond the input of a feed-forward activation
    loose: N  # ... where the activation is several kernels
    mask: N  # of a dropout mask
    score: N  # of a stored attention score; 0 where none is stored
    twice: N  # of an attention output kept beside what the projection keeps
    kept_input: N  # of the input a recomputed layer keeps
    low_inputs: N  # share of a product's input kept where products are in low precision
    uneven: N  # routed tokens of the fullest rank for those of the mean
    dispatch: N  # of a routed element, for copies on its way to its expert and back
    frozen_inputs: N  # 1 where products with frozen weights keep their inputs
    logit: N
    logits_split: N  # 1 where logits are divided over tensor-parallel ranks
    logits_held: N  # share of the logits that stands while layers run again
    chunk: N  # tokens of a chunked loss; 0 = all
    bucket: N  # bytes of communication buffers, at most
    gathered: N  # layers whose whole parameters are there at once under ZeRO-3
    workspace: N  # bytes in all
    pieces: N  # 1 where each expert's matrices are tensors of their own
    base: N  # bytes in all that a process holds beside tensors
    reserve: N  # share of activations that the allocator holds in pieces


def sizes_of(job: Job, stack: Stack, chip: Chip) -> Sizes:
    """The sizes of a job on a chip under a stack."""
    wide = 4.0 if job.precision in ("fp32", "tf32") else 2.0
    trained = job.trained == "all"
    quantized = job.trained == "qlora"
    upcast = quantized and stack.widened
    parameter = max(stack.parameter, wide)
    masters = stack.optimizer >= MASTER + MOMENTS and wide == 2.0
    merged = stack.merged and masters
    moments = MOMENTS if stack.optimizer >= MOMENTS else stack.optimizer
    beside = stack.optimizer - MOMENTS - MASTER * merged if masters else 0.0
    optimizer = moments * KEPT.get(job.optimizer, 1.0) + beside
    muon = job.optimizer == "muon"  # Jordan et al. 2024; tables and norms stay with Adam
    kernel = stack.flash if job.attention == "flash" else job.attention
    scores = {"unfused": stack.score_bytes, "fused-softmax": stack.fused_score_bytes}
    return Sizes(
        parameter=MASTER if merged else parameter,
        copy=wide if merged else 0.0,
        gradient=max(stack.gradient, wide) if stack.gradient else 0.0,
        gradients_stay=stack.flat_gradients,
        optimizer=optimizer,
        optimizer_table=moments + beside if muon else optimizer,
        whole_tensors=float(muon),
        weight_casts=stack.weight_casts if job.precision in LOW else 0.0,
        frozen=FOUR_BIT[stack.double_quantized] if quantized else wide,
        frozen_table=4.0 if upcast else wide,
        flat_gradient=0.0 if trained else wide * stack.flat_frozen,
        trained=float(trained),
        adapter=0.0 if trained else _adapter(stack, wide),
        rank=job.lora_rank,
        step_gradient=stack.step_gradient,
        step_copy=stack.step_copies * moments / 2,
        activation=wide,
        norm=0.0 if stack.fused_norm else stack.norm_copies,
        glue=stack.token_copies,
        act=stack.act_copies,
        loose=stack.loose_copies,
        mask=stack.masks,
        score=scores.get(kernel, 0.0),
        twice=0.0 if kernel in scores else stack.output_copies,
        kept_input=2 * stack.kept_input if upcast or wide == 4.0 else stack.kept_input,
        low_inputs=stack.low_inputs if job.precision in LOW else 1.0,
        uneven=stack.uneven,
        dispatch=stack.dispatch_copies,
        frozen_inputs=float(trained or quantized),
        logit=stack.logits_bytes + (4.0 if upcast else 0.0),
        logits_split=stack.logits_split,
        logits_held=stack.logits_held,
        chunk=CHUNK * stack.chunked_loss,
        bucket=stack.bucket_gib * GIB,
        gathered=stack.gathered,
        workspace=workspace_bytes(stack, chip, bool(job.model.experts)),
        pieces=float(stack.kind == "plain"),
        base=stack.base_gib * GIB if chip.accelerator else 0.0,
        reserve=stack.reserve if chip.accelerator else 0.0,
    )


def _adapter(stack: Stack, wide: float) -> float:
    """Bytes of all states of an adapter's element."""
    pure = stack.optimizer < MOMENTS and stack.gradient < WIDEST and wide < WIDEST
    return stack.parameter + stack.gradient + stack.optimizer if pure else ADAPTER


def workspace_bytes(stack: Stack, chip: Chip, grouped: bool, deterministic: bool = False) -> float:
    """Bytes of the workspaces of matrix products; a deterministic run asks for large ones everywhere."""
    large = chip.architecture in LARGE_SINCE
    blas = LARGE_WORKSPACE if chip.architecture == LARGE_SINCE[0] or deterministic else SMALL_WORKSPACE
    engine = LARGE_WORKSPACE if large else SMALL_ENGINE_WORKSPACE
    streams = stack.engine_workspaces * (1 + GROUPED_STREAMS * grouped)
    return (stack.workspaces * blas + streams * engine) * chip.accelerator
