"""The export verb: parse, call, print. Options are the fields of one record."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from burnish.errors import UserError


@dataclass(frozen=True)
class Options:
    """What `burnish export` takes."""

    model: Annotated[str, Argument(help="A run folder, or any other model (see `burnish inspect`).")]
    to: Annotated[Path | None, Option("--to", help="Folder, FILE.gguf or FILE.onnx; default RUN/model.")] = None
    dtype: Annotated[str | None, Option("--dtype", help="float32, float16, bfloat16; GGUF: f16, q8_0, ...")] = None
    form: Annotated[str | None, Option("--format", help="onnx; onnxruntime: with its own fused operators.")] = None
    head: Annotated[str, Option(help="onnxruntime: the vocabulary as float32, int8 or int4.")] = "float32"
    accuracy_level: Annotated[int, Option(help="onnxruntime: 4 rounds inputs of 4-bit products to 8 bits.")] = 1
    force: Annotated[bool, Option("--force", help="ONNX: keep 8-bit products that are slower here.")] = False
    for_: Annotated[str | None, Option("--for", help="vllm: the folder with the command that serves it.")] = None
    chip: Annotated[str | None, Option(help="With --for vllm: the GPU, such as h100-sxm.")] = None
    gpus: Annotated[int, Option(help="With --for vllm: how many there are.")] = 1


def export(options: Options) -> None:
    """Write a model as a Hugging Face folder, a GGUF or an ONNX file, or for vLLM, and check it by reading it again."""
    from burnish import finished, show

    if options.for_ is not None:
        found = _for_vllm(options)
        command = found.pop("serve")
        show.checks(found)
        print(f"{options.to}/serve.sh: {command}")
        return
    if options.chip is not None or options.gpus != 1:
        raise UserError("--chip and --gpus: are options of --for vllm")
    onnx = finished.onnx_choices(options.to, options.form, (options.head, options.accuracy_level, options.force))
    show.checks(finished.export(options.model, options.to, options.dtype, onnx))


def _for_vllm(options: Options) -> dict[str, bool | float | str]:
    from burnish import finished

    if options.for_ != "vllm":
        raise UserError(f"--for {options.for_}: vllm works; other programs read what --to and --format write")
    if options.to is None or options.chip is None:
        raise UserError("--for vllm: say where it goes and on which GPU: --to FOLDER --chip h100-sxm --gpus 2")
    if (options.form, options.head, options.accuracy_level, options.force) != (None, "float32", 1, False):
        raise UserError("--for vllm: --format, --head, --accuracy-level and --force are options of ONNX files")
    finished.require_torch("burnish export")
    from burnish.export.vllm import export_vllm
    from burnish.load.source import open_model

    return export_vllm(open_model(options.model), options.to, options.dtype, options.chip, options.gpus)
