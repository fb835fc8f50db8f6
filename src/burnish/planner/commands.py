"""Commands: what another stack would be started with for a mapping, and which mappings it can be told.

Options of Megatron-LM (core 0.15) and of torchtitan (0.2, started by torchrun). What the stack's profile says is overlapped or
fused is asked for. What only the user knows stays a word in capitals: data, tokenizer, the address of the first node. What of
the job has no option stands below the command.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

import numpy as np

from burnish.architecture import Architecture
from burnish.mapping import OFFLOAD, RECOMPUTE, SCHEDULE, Mapping
from burnish.planner.request import Request

WIDTH = 96
GPIPE, ONE_F_ONE_B, ZERO_BUBBLE = range(len(SCHEDULE))
Option = tuple[str, object]
# What `can_say` leaves out, in words.
UNSAID = {
    "megatron": "ZeRO 2 and 3 go without a pipeline, the schedule is 1f1b, only the optimizer can be offloaded, recompute is "
    "none, attention or full",
    "torchrun": "ZeRO is 0, 2 or 3, sp goes with tp, etp is 1, ep at most dp x cp, only all states can be offloaded, recompute "
    "is none, products or full",
}
# How each names an optimizer; others it does not have.
OPTIMIZER = {
    "megatron": {"adamw": "adam", "adam": "adam", "sgd": "sgd"},
    "torchrun": {"adamw": "AdamW", "adam": "Adam"},
}
PRECISION = {
    "megatron": ("fp32", "bf16", "fp16", "fp8", "fp8-block", "mxfp8", "nvfp4"),
    "torchrun": ("fp32", "bf16", "fp8", "mxfp8"),
}
KERNELS = {"megatron": ("flash", "unfused", "fused-softmax"), "torchrun": ("flash",)}  # by the names of profiles
TOOLS = {"megatron": ("megatron", "megatron-core"), "torchrun": ("fsdp2", "torch")}


def can_say(dialect: str, mapping: Mapping) -> np.ndarray:
    """Which candidates (arrays) the command of a dialect can express; all where none is asked for."""
    m = mapping
    everything = np.ones(len(np.asarray(m.tp)), dtype=bool)
    if dialect == "megatron":
        # its fully sharded variant splits gradients and parameters without a pipeline only
        return (
            (m.schedule == ONE_F_ONE_B)
            & ((m.zero < 2) | (m.pp == 1))
            & (m.offload < OFFLOAD.index("states"))
            & (m.recompute != RECOMPUTE.index("products"))
            & everything
        )
    if dialect == "torchrun":
        # it splits nothing, or at least gradients; token split goes with tensor parallel; experts lie over data parallel
        splits = (m.zero != 1) & ((m.zero > 0) | (m.cp == 1)) & (m.ep * m.etp <= m.dp * m.cp) & (m.etp == 1)
        splits &= m.recompute != RECOMPUTE.index("attention")
        return splits & (m.offload != OFFLOAD.index("optimizer")) & ((m.sp == 1) | (m.tp == 1)) & everything
    return everything


def told(asked: Request, mapping: Mapping) -> str:
    """The command, and as comments below it what it leaves to the user and what of the job it cannot say."""
    below = ["data, tokenizer, learning-rate and rotary-base options are yours to add"]
    if lacks := unsaid(asked):
        below.append(f"the command cannot say: {'; '.join(lacks)}")
    shown = (textwrap.wrap(text, WIDTH, initial_indent="# ", subsequent_indent="#   ") for text in below)
    return "\n".join([command(asked, mapping), *(line for lines in shown for line in lines)])


def unsaid(asked: Request) -> list[str]:
    """What of a priced job the command of a dialect has no option for."""
    dialect, model, stack = asked.dialect, asked.model, asked.profile
    megatron_only = dialect == "megatron"
    kernel = stack.kernel(asked.attention)
    cases = [
        (asked.optimizer not in OPTIMIZER[dialect], f"--optimizer {asked.optimizer}"),
        (asked.precision not in PRECISION[dialect], f"--precision {asked.precision}"),
        (kernel not in KERNELS[dialect], f"attention by {kernel}"),
        (stack.tool not in TOOLS[dialect], f"that it was priced as {stack.name}, another stack"),
        (megatron_only and model.windowed_layers, "the layers with a sliding window"),
        (megatron_only and model.mixer_layers, "the state-space layers"),
        (megatron_only and model.routed_width, "the narrower width of what is sent to experts"),
    ]
    return [words for holds, words in cases if holds]


def command(asked: Request, mapping: Mapping) -> str:
    """The command for one mapping of numbers, one option group a line."""
    options = {"megatron": megatron, "torchrun": torchtitan}[asked.dialect](asked, mapping)
    program = {"megatron": "pretrain_gpt.py", "torchrun": "-m torchtitan.train"}[asked.dialect]
    there, used = asked.cluster, int(mapping.gpus)
    ranks = min(there.per_node, used)
    start = (
        f"torchrun --nnodes {-(-used // ranks)} --nproc-per-node {ranks} --rdzv-backend c10d --rdzv-endpoint HOST:PORT"
    )
    return " \\\n".join([start, f"    {program}", *_wrapped(options)])


def _wrapped(options: Iterator[Option]) -> Iterator[str]:
    line = "   "
    for name, value in options:
        text = f" {name}" + ("" if value is True else f" {value}")
        if len(line) + len(text) > WIDTH:
            yield line
            line = "   "
        line += text
    yield line


def megatron(asked: Request, m: Mapping) -> Iterator[Option]:
    """Options of Megatron-LM's `pretrain_gpt.py`."""
    stack = asked.profile
    yield from (
        ("--seq-length", asked.seq),
        ("--max-position-embeddings", max(asked.seq, int(asked.model.max_positions))),
    )
    yield from (("--micro-batch-size", m.micro_batch), ("--global-batch-size", asked.batch))
    yield from (("--tensor-model-parallel-size", m.tp), ("--pipeline-model-parallel-size", m.pp))
    optional: list[tuple[object, Option]] = [
        (m.sp, ("--sequence-parallel", True)),
        (m.cp > 1, ("--context-parallel-size", m.cp)),
        (m.ep > 1, ("--expert-model-parallel-size", m.ep)),
        (asked.model.experts and m.tp > 1, ("--expert-tensor-parallel-size", m.etp)),
        (m.vpp > 1, ("--num-virtual-stages-per-pipeline-rank", m.vpp)),
        (m.zero, ("--use-distributed-optimizer", True)),
        (m.zero and m.shard, ("--num-distributed-optimizer-instances", m.dp * m.cp // max(int(m.shard), 1))),
        (m.zero > 1, ("--use-megatron-fsdp", True)),
        (m.zero > 1, ("--data-parallel-sharding-strategy", "optim_grads_params" if m.zero == 3 else "optim_grads")),
        (m.zero > 1, ("--ckpt-format", "fsdp_dtensor")),
        (m.zero > 1, ("--no-gradient-accumulation-fusion", True)),
        (m.zero and stack.dp_overlap, ("--overlap-grad-reduce", True)),
        (m.zero and stack.dp_overlap, ("--overlap-param-gather", True)),
        (m.sp and m.tp > 1 and stack.tp_overlap, ("--tp-comm-overlap", True)),
        (stack.loss == "fused", ("--cross-entropy-loss-fusion", True)),
        (m.recompute == RECOMPUTE.index("attention"), ("--recompute-granularity", "selective")),
        (m.recompute == RECOMPUTE.index("full"), ("--recompute-granularity", "full")),
        (m.recompute == RECOMPUTE.index("full"), ("--recompute-method", "uniform")),
        (m.recompute == RECOMPUTE.index("full"), ("--recompute-num-layers", 1)),
        (m.offload == OFFLOAD.index("optimizer"), ("--optimizer-cpu-offload", True)),
    ]
    yield from (option for holds, option in optional if holds)
    yield from _megatron_precision(asked.precision)
    kernel = stack.kernel(asked.attention)
    yield "--attention-backend", "flash" if kernel.startswith("flash") else "unfused"
    if kernel == "unfused":
        yield "--no-masked-softmax-fusion", True
    if not stack.masks:
        yield from (("--attention-dropout", 0), ("--hidden-dropout", 0))
    if name := OPTIMIZER["megatron"].get(asked.optimizer):
        yield "--optimizer", name
    yield from _megatron_model(asked.model)
    yield from (("--tokenizer-model", "TOKENIZER"), ("--data-path", "DATA"), ("--train-iters", "STEPS"))


def _megatron_precision(precision: str) -> Iterator[Option]:
    if precision in ("bf16", "fp16"):
        yield f"--{precision}", True
    recipe = {"fp8": "tensorwise", "fp8-block": "blockwise", "mxfp8": "mxfp8"}.get(precision)
    if recipe:
        yield from (("--bf16", True), ("--fp8-format", "hybrid"), ("--fp8-recipe", recipe))
    if precision == "nvfp4":
        yield from (("--bf16", True), ("--fp4-format", "e2m1"), ("--fp4-recipe", "nvfp4"))


def _megatron_model(model: Architecture) -> Iterator[Option]:
    yield from (("--num-layers", model.layers), ("--hidden-size", model.hidden))
    yield from (("--num-attention-heads", model.heads), ("--kv-channels", model.head_dim))
    grouped, latent, experts = model.kv_heads != model.heads, model.kv_rank, model.experts
    optional: list[tuple[object, Option]] = [
        (model.ffn, ("--ffn-hidden-size", model.ffn)),
        (grouped and not latent, ("--group-query-attention", True)),
        (grouped and not latent, ("--num-query-groups", model.kv_heads)),
        (latent, ("--multi-latent-attention", True)),
        (latent and model.q_rank, ("--q-lora-rank", model.q_rank)),
        (latent, ("--kv-lora-rank", model.kv_rank)),
        (latent, ("--qk-head-dim", model.head_dim)),
        (latent, ("--qk-pos-emb-head-dim", model.rope_dim)),
        (latent, ("--v-head-dim", model.value_dim or model.head_dim)),
        (model.gated, ("--swiglu", True)),
        (not model.layer_norm, ("--normalization", "RMSNorm")),
        (not model.layer_norm, ("--disable-bias-linear", True)),
        (not model.positions, ("--position-embedding-type", "rope")),
        (not model.tied, ("--untie-embeddings-and-output-weights", True)),
        (experts, ("--num-experts", experts)),
        (experts, ("--moe-router-topk", model.topk)),
        (experts, ("--moe-ffn-hidden-size", model.expert_ffn)),
        (experts, ("--moe-grouped-gemm", True)),
        (experts, ("--moe-token-dispatcher-type", "alltoall")),
        (experts and model.shared_ffn, ("--moe-shared-expert-intermediate-size", model.shared_ffn)),
        (
            experts and model.expert_layers < model.layers,
            ("--moe-layer-freq", f"'([0]*{model.layers - model.expert_layers}+[1]*{model.expert_layers})'"),
        ),
        (model.mtp, ("--mtp-num-layers", model.mtp)),
    ]
    yield from (option for holds, option in optional if holds)


def torchtitan(asked: Request, m: Mapping) -> Iterator[Option]:
    """Options of `torchtitan.train`; its own file of the model stands for the sizes."""
    own = asked.batch // int(m.dp)
    group = int(m.shard) or int(m.dp) * int(m.cp)
    copies = int(m.dp) * int(m.cp) // group
    yield "--job.config_file", "MODEL.toml"
    yield from (("--training.seq_len", asked.seq), ("--training.global_batch_size", asked.batch))
    yield "--training.local_batch_size", own if m.pp > 1 else m.micro_batch
    yield "--parallelism.data_parallel_replicate_degree", copies if m.zero else m.dp
    yield "--parallelism.data_parallel_shard_degree", max(group // int(m.cp), 1) if m.zero else 1
    layers = -(-int(asked.model.layers) // (int(m.pp) * int(m.vpp)))
    schedule = {GPIPE: "GPipe", ONE_F_ONE_B: "1F1B", ZERO_BUBBLE: "ZBVZeroBubble"}[int(m.schedule)]
    interleaved = "InterleavedZeroBubble" if m.schedule == ZERO_BUBBLE else "Interleaved1F1B"
    optional: list[tuple[object, Option]] = [
        (m.zero, ("--parallelism.fsdp_reshard_after_forward", "always" if m.zero == 3 else "never")),
        (m.tp > 1, ("--parallelism.tensor_parallel_degree", m.tp)),
        (m.cp > 1, ("--parallelism.context_parallel_degree", m.cp)),
        (m.ep > 1, ("--parallelism.expert_parallel_degree", m.ep)),
        (m.pp > 1, ("--parallelism.pipeline_parallel_degree", m.pp)),
        (m.pp > 1, ("--parallelism.pipeline_parallel_schedule", interleaved if m.vpp > 1 else schedule)),
        (m.pp > 1, ("--parallelism.pipeline_parallel_microbatch_size", m.micro_batch)),
        (m.pp > 1, ("--parallelism.pipeline_parallel_layers_per_stage", layers)),
        (m.offload, ("--training.enable_cpu_offload", True)),
    ]
    yield from (option for holds, option in optional if holds)
    mode = {"none": "none", "full": "full"}.get(RECOMPUTE[int(m.recompute)], "selective")
    yield "--activation_checkpoint.mode", mode
    if mode == "selective":
        yield "--activation_checkpoint.selective_ac_option", "op"
    if name := OPTIMIZER["torchrun"].get(asked.optimizer):
        yield "--optimizer.name", name
    if asked.precision == "fp32":
        yield "--training.mixed_precision_param", "float32"
    if asked.precision == "fp8":
        yield "--model.converters", "quantize.linear.float8"
    if asked.precision == "mxfp8":
        yield "--model.converters", "quantize.linear.mx"
    yield "--compile.enable", True
