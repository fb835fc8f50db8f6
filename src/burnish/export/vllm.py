"""A model for vLLM: its folder, the command that serves it on given GPUs, and why each figure of the command is what it is.

The memory of a GPU that vLLM may use holds weights, what a step makes, and keys and values; the last decide how many sequences
of full length run at once. Every figure is predicted; the flags are those of `vllm serve`.
"""

from __future__ import annotations

import math
import re
import shlex
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from burnish.config import ModelConfig
from burnish.errors import BudgetNotMet, UserError
from burnish.export.convert import convert
from burnish.export.folder import refuse_foreign, replacing_folder
from burnish.hardware import Chip, chip_for
from burnish.load.checkpoint import Checkpoint
from burnish.load.encoder import is_encoder
from burnish.load.model import TRAINED_LENGTH, config_of
from burnish.pool_size import position_bytes, step_bytes
from burnish.records import write_text
from burnish.units import counted, show

UTILIZATION = 0.9  # of a GPU's memory that vLLM may use: its own default
STEP_TOKENS = 8192  # most tokens of a step, its default on GPUs of data centers; stated, as defaults differ by version
SEQUENCES = 256  # at once, its default; more is rarely of use
GRAPHS = 2**30  # bytes for captured CUDA graphs and the libraries' own, an allowance
PAGE = 16  # positions of a page, its default
SHORTEST = 512  # a context below this is not worth a server
ELEMENT = 2  # bytes of keys and values in 16 bits
MODEL, SCRIPT, WHY = "model", "serve.sh", "README.md"
_PART = re.compile(r"[\w.-]+\.(json|safetensors|jinja|model|txt)")


@dataclass(frozen=True)
class Serving:
    """What the command says: GPUs of one copy, positions of a sequence, sequences at once; and bytes of one GPU."""

    chip: Chip
    gpus: int
    tp: int
    context: int
    sequences: int
    weights: int
    step: int
    pool: int
    position: int
    dtype: str
    integers: bool

    def command(self, folder: str) -> str:
        """The command that serves the model in `folder`."""
        words = ["vllm", "serve", folder, "--tensor-parallel-size", str(self.tp), "--dtype", self.dtype]
        words += ["--max-model-len", str(self.context), "--max-num-seqs", str(self.sequences)]
        words += ["--max-num-batched-tokens", str(STEP_TOKENS), "--gpu-memory-utilization", str(UTILIZATION)]
        words += ["--quantization", "compressed-tensors"] if self.integers else []
        return shlex.join(words)

    def reasons(self, config: ModelConfig) -> Iterator[tuple[str, str]]:
        """(flag, why it has its value)."""
        usable = show(UTILIZATION * self.chip.memory, "bytes")
        least = "the model fits on one" if self.tp == 1 else "fewer GPUs do not hold it, or do not divide its heads"
        left = (
            f"; {self.gpus // self.tp} copies fit on the {self.gpus}, one command each"
            if self.gpus // self.tp > 1
            else ""
        )
        yield f"--tensor-parallel-size {self.tp}", f"{least}{left}"
        whole = self.context == config.max_positions
        yield (
            f"--max-model-len {self.context}",
            "all positions of the model"
            if whole
            else f"what keys and values have room for, of {config.max_positions:,}",
        )
        yield (
            f"--max-num-seqs {self.sequences}",
            f"{show(self.pool, 'bytes')} hold {self.pool // self.position:,} positions of {show(self.position, 'bytes')} a GPU: "
            f"so many sequences of full length need never give way (at most {SEQUENCES})",
        )
        yield (
            f"--gpu-memory-utilization {UTILIZATION}",
            f"{usable} of {show(self.chip.memory, 'bytes')}: weights {show(self.weights, 'bytes')}, a step "
            f"{show(self.step, 'bytes')}, CUDA graphs {show(GRAPHS, 'bytes')} (allowed for), keys and values the rest",
        )
        yield f"--max-num-batched-tokens {STEP_TOKENS}", "what the bytes of a step are counted for"
        yield f"--dtype {self.dtype}", "what the folder holds" if self.integers else "16 bits that the chip computes in"
        if self.integers:
            yield "--quantization compressed-tensors", "what config.json says of the weights"


def serving(config: ModelConfig, weights: int, chip: Chip, gpus: int, dtype: str, integers: bool = False) -> Serving:
    """The fewest GPUs that hold `weights` bytes and one sequence of all positions, else the longest context on the most.

    Raises UserError for a chip without memory of its own, BudgetNotMet where nothing fits.
    """
    if not chip.accelerator or not chip.memory:
        raise UserError(f"--chip {chip.name}: vLLM's figures are for GPUs; `burnish hardware list` names them")
    if gpus < 1:
        raise UserError(f"--gpus {gpus}: 1 or more")
    degrees = [tp for tp in range(1, gpus + 1) if _divides(config, tp)]
    step = step_bytes(config, STEP_TOKENS, SEQUENCES, ELEMENT)
    for tp in degrees:
        heads = math.ceil(config.kv_heads / tp)  # where they are fewer than GPUs each has a copy
        position = position_bytes(config, ELEMENT) // config.kv_heads * heads
        own = math.ceil(weights / tp)
        pool = int(UTILIZATION * chip.memory) - own - step - GRAPHS
        context = min(config.max_positions, max(pool, 0) // position // PAGE * PAGE)
        if context == config.max_positions or (tp == degrees[-1] and context >= min(SHORTEST, config.max_positions)):
            most = min(SEQUENCES, pool // (math.ceil(context / PAGE) * PAGE * position))
            return Serving(chip, gpus, tp, context, max(1, most), own, step, pool, position, dtype, integers)
    need = weights + GRAPHS + step
    raise BudgetNotMet(
        f"{show(weights, 'bytes')} of weights do not fit on {counted(gpus, 'GPU')} of {chip.name}: {show(need, 'bytes')} and keys "
        f"and values are needed, {show(UTILIZATION * chip.memory, 'bytes')} a GPU usable; give more --gpus, or compress it first "
        "(burnish compress --with awq)"
    )


def export_vllm(
    checkpoint: Checkpoint, to: Path, form: str | None, chip: str, gpus: int
) -> dict[str, bool | float | str]:
    """Write OUT/model, OUT/serve.sh and OUT/README.md; what they say, as `convert` does. Nothing is written where nothing fits.

    A folder of compressed-tensors keeps its integers; any other model becomes one of 16 bits, or of `form`. Raises UserError for
    an encoder and for a format that vLLM does not read.
    """
    if is_encoder(checkpoint):
        raise UserError(f"{checkpoint.where}: is an encoder; --for vllm is for models that write text")
    config, place = config_of(checkpoint), chip_for(chip)
    integers = any(tensor.integers is not None for tensor in checkpoint.tensors.values())
    if integers and form is not None:
        raise UserError(f"--dtype {form}: the model has integers, which are kept as they are; leave --dtype out")
    dtype = _dtype(checkpoint, place, form, integers)
    item = {"float32": 4}.get(dtype, 2)
    tensors = checkpoint.tensors.values()
    weights = sum(one.bytes if one.integers is not None else math.prod(one.shape) * item for one in tensors)
    made = serving(config, weights, place, gpus, dtype, integers)
    refuse_foreign(to / MODEL, lambda name: _PART.fullmatch(name) is not None)
    if integers:
        found = _copied(checkpoint, to / MODEL)
    else:
        found = convert(checkpoint, to / MODEL, dtype)
    command = made.command(MODEL)
    write_text(
        to / SCRIPT,
        f'#!/bin/sh\n# Predicted for {place.name}; the reasons are in {WHY}.\ncd "$(dirname "$0")" || exit\n{command}\n',
    )
    write_text(to / WHY, _page(made, config, checkpoint, command))
    (to / SCRIPT).chmod(0o755)
    return found | {"serve": command}


def _dtype(checkpoint: Checkpoint, chip: Chip, form: str | None, integers: bool) -> str:
    if integers:
        return str(checkpoint.config.get("torch_dtype") or checkpoint.config.get("dtype") or "float16")
    return form.lower() if form is not None else "bfloat16" if not chip.flops or "bf16" in chip.flops else "float16"


def _copied(checkpoint: Checkpoint, to: Path) -> dict[str, bool | float | str]:
    """The files of a folder as they are."""
    source = next(iter(checkpoint.tensors.values())).file.parent
    if source.resolve() == to.resolve():
        raise UserError(f"--to {to.parent}: the model lies there already; choose another folder")
    size = 0
    with replacing_folder(to, lambda name: _PART.fullmatch(name) is not None) as fresh:
        for file in source.iterdir():
            if file.is_file() and _PART.fullmatch(file.name):
                shutil.copyfile(file, fresh / file.name)
                size += file.stat().st_size
    return {"size": show(size, "bytes"), "weights": "integers, copied as they are"}


def _page(made: Serving, config: ModelConfig, checkpoint: Checkpoint, command: str) -> str:
    rows = "\n".join(f"| `{flag}` | {why} |" for flag, why in made.reasons(config))
    trained = checkpoint.config.get(TRAINED_LENGTH)
    shorter = isinstance(trained, int) and trained < made.context
    warning = (
        f"\nThe model was trained on {trained:,} tokens at once; beyond them it is likely to make no sense.\n"
        if shorter
        else ""
    )
    on = f"On {counted(made.gpus, 'GPU')} of {made.chip.name}, all figures predicted:"
    return (
        f"# {Path(checkpoint.where).name} for vLLM\n\n{on}\n\n"
        f"```sh\n{command}\n```\n\n| flag | why |\n|---|---|\n{rows}\n{warning}\n"
        "Requests that are shorter than the context leave room for more at once: raise `--max-num-seqs` by as much. Where another\n"
        "program uses the GPU too, lower `--gpu-memory-utilization` by its share.\n"
    )


def _divides(config: ModelConfig, tp: int) -> bool:
    pairs = config.kv_heads
    return not (config.heads % tp or config.ffn % tp or (pairs % tp and tp % pairs))
