"""CI rows: memory that Megatron-LM's functional tests record, predicted from the arguments each test was started with.

A line gives allocated bytes at the end of a step and at the peak, both of the last rank, which is in the last stage.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from burnish.architecture import Architecture
from burnish.ci_arguments import Arguments, architecture, arguments_of, last_layers, mapping
from burnish.cluster import chip_for
from burnish.errors import UserError
from burnish.hardware import Chip
from burnish.job import Job
from burnish.mapping import Mapping
from burnish.memory import between_steps, case_of, peak
from burnish.memory.moments import Case
from burnish.memory.sizes import LARGE_WORKSPACE, Sizes, sizes_of, workspace_bytes
from burnish.memory.stages import Stage
from burnish.rows.cells import Cells, NotExpressed, read_table
from burnish.rows.rules import table
from burnish.stack import Stack, stacks

NEEDED = ("args_json", "mem_allocated_bytes", "mem_max_allocated_bytes")


class Prediction(NamedTuple):
    """One line: what was measured and predicted, in bytes; `reason` says why there is no prediction where it is none."""

    id: str
    source: str
    family: str
    measured_allocated: float | None
    measured_peak: float | None
    predicted_allocated: float | None
    predicted_peak: float | None
    reason: str


def predict(path: Path | str) -> list[Prediction]:
    """The lines of a CSV file of such rows beside what is predicted. Raises UserError where the file is none."""
    columns, lines = read_table(path)
    if missing := [name for name in NEEDED if name not in columns]:
        raise UserError(f"{path}: no column {', '.join(missing)}; rows of CI memory have {', '.join(NEEDED)}")
    return [_line(Cells(line)) for line in lines]


def _line(cells: Cells) -> Prediction:
    allocated, most, before, top, reason = None, None, None, None, ""
    try:
        before, top = (cells.number(name) for name in NEEDED[1:])
        allocated, most = _predicted(cells)
    except NotExpressed as stop:
        reason = str(stop)
    named, source, family = (cells.text(name) for name in ("id", "source", "family"))
    return Prediction(named, source or "unnamed", family, before, top, allocated, most, reason)


def _predicted(cells: Cells) -> tuple[float, float]:
    """Bytes at the end of a step and at the peak. Raises NotExpressed where arguments make no model or no layout."""
    try:
        with np.errstate(all="ignore"):
            case = case_of_line(cells)
            made = _total(between_steps(case)), _total(peak(case))
    except (ValueError, TypeError, ArithmeticError, LookupError) as error:  # a test's arguments may be anything
        raise NotExpressed(f"args_json: {str(error)[:60] or type(error).__name__}") from None
    if not np.isfinite(made).all():
        raise NotExpressed("args_json: the arguments give no finite memory")
    return made


def _total(kinds: dict[str, Any]) -> float:
    return float(np.sum([np.asarray(size).ravel()[-1] for size in kinds.values()]))


def case_of_line(cells: Cells) -> Case:
    """What the last rank of a line holds. Raises NotExpressed for what is no plain decoder."""
    family = cells.text("family")
    if why := table("ci")["family"].get(family):
        raise NotExpressed(f"family {family}: {why}")
    args = arguments_of(cells)
    try:
        chip = chip_for(cells.text("gpu"), cells.number("gpu_mem_gb"))
    except UserError as error:
        raise NotExpressed(f"gpu: {error}") from None
    model, layout = architecture(args), mapping(args)
    seq, batch = args.number("seq-length"), args.number("global-batch-size")
    sizes = _sizes(args, model, layout, chip)
    return case_of(model, (seq, batch), layout, sizes, stages=_last(args, model, layout, batch))


def _last(args: Arguments, model: Architecture, layout: Mapping, batch: int) -> Stage:
    """The last stage of a pipeline as its arguments cut it; the only one without a pipeline."""
    routed = last_layers(args)
    whole, alone = len(routed) - sum(routed), layout.pp == 1
    micro = max(1, batch // (int(layout.dp) * int(layout.micro_batch)))
    chunks = args.chunks
    group = args.number("microbatch-group-size-per-virtual-pipeline-stage", args.stages)
    ahead = ((chunks - 1) * group + 1) / chunks
    further = int(model.mtp)
    return Stage(
        layers=(whole, sum(routed)) if model.experts else (whole,),
        embedding=int(alone),
        head=1,
        table=int(alone) + int(not alone or not model.tied) + int(further > 0 and not alone),
        further=further,
        flight=min(ahead, micro),
    )


def _sizes(args: Arguments, model: Architecture, layout: Mapping, chip: Chip) -> Sizes:
    """Bytes an element of a test; nothing but what the allocator has given out counts."""
    stack = replace(_stack(args), base_gib=0.0, reserve=0.0)
    job = Job(
        model,
        args.number("seq-length"),
        args.number("global-batch-size"),
        precision=_precision(args),
        attention=_attention(args),
        optimizer="muon" if "muon" in args.text("optimizer") else "adamw",
    )
    grouped = args.flag("moe-grouped-gemm")
    workspace = workspace_bytes(stack, chip, grouped, _deterministic(args, layout))
    if args.flag("tp-comm-overlap"):
        rule = table("ci")["stack"]
        tensor = 2 * args.number("seq-length") * args.number("micro-batch-size") * int(model.hidden)
        workspace += rule["user_workspaces"] * LARGE_WORKSPACE + rule["user_buffers"] * tensor
    return replace(sizes_of(job, stack, chip), workspace=workspace)


def _stack(args: Arguments) -> Stack:
    rule = table("ci")["stack"]
    stack = replace(stacks()[rule["name"]], masks=int(args.values.get("hidden-dropout", 0.1) != 0))
    changes: dict[str, Any] = {
        "uneven": rule["uneven"],
        "score_bytes": stack.score_bytes if stack.masks else stack.score_bytes - 3,
    }
    if args.flag("fp16"):  # gradients in 16 bits, and a float32 one of each master that stays
        changes |= {"gradient": 2, "optimizer": stack.optimizer + 4}
    if args.text("transformer-impl") == "local":
        changes |= {"workspaces": rule["local_workspaces"], "engine_workspaces": 0}
    if args.flag("cross-entropy-loss-fusion"):
        changes["logits_bytes"] = rule["fused_loss_bytes"]
    if args.flag("defer-embedding-wgrad-compute"):  # gradients of logits wait for the weight's
        changes["logits_bytes"] = stack.logits_bytes + 2 * args.number("wgrad-deferral-limit", 1)
    if args.flag("fp8-param-gather"):
        changes["weight_casts"] = 0
    return replace(stack, **changes)


def _precision(args: Arguments) -> str:
    if not args.flag("bf16") and not args.flag("fp16"):
        return "fp32"
    return "fp8" if args.text("fp8-format") else "bf16"


def _attention(args: Arguments) -> str:
    """The kernel of attention; tests recorded before an argument was changed go by what it was."""
    old = table("ci")["old"]
    backend = args.text("attention-backend")
    if not backend and old["match"] in args.cells.text("environment"):
        backend = old["attention"]
    stored = backend in ("unfused", "local") or args.text("transformer-impl") == "local"
    return "unfused" if stored else "flash"


def _deterministic(args: Arguments, layout: Mapping) -> bool:
    """Whether cuBLAS is told to keep large workspaces; an environment variable may do it too, which only the name of a
    test tells, and only where its record is as new as its arguments."""
    named = int(layout.cp) > 1 and "nondeterministic" not in args.cells.text("test_case")
    recent = args.cells.found("config_commit_note", "both used") is not None
    return args.flag("deterministic-mode") or (named and recent)


def within(line: Prediction, megabytes: float, share: float) -> bool:
    """Whether a line's allocated bytes are predicted to so many megabytes or that share."""
    if line.predicted_allocated is None or not line.measured_allocated:
        return False
    off = abs(line.predicted_allocated - line.measured_allocated)
    return off <= megabytes * 1e6 or off <= share * line.measured_allocated


def engine_lines(path: Path | str) -> Iterator[tuple[Prediction, bool]]:
    """Each line with whether its layers are Transformer Engine's."""
    _, lines = read_table(path)
    seen: set[str] = set()
    for number, line in enumerate(lines, 2):
        cells = Cells(line)
        made = _line(cells)
        name = made.id or f"line {number}"
        made = made._replace(id=f"{name} (line {number})" if name in seen else name)
        seen |= {name, made.id}
        yield made, cells.text("transformer_impl") == "transformer_engine"
