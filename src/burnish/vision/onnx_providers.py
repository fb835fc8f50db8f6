"""Providers: a network in ONNX on the fastest that this machine has, TensorRT before CUDA before the processor; none required."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from burnish.errors import UserError
from burnish.export.onnx_session import WARNINGS_OFF, need_onnx

IMAGES, SCORES = "images", "scores"  # names of a network's input and output
PREFERRED = ("TensorrtExecutionProvider", "CUDAExecutionProvider", "CPUExecutionProvider")
ON_CPU = PREFERRED[-1:]
SILENT = WARNINGS_OFF + 1  # severity of onnxruntime's log: not even errors, where one is an answer
VNNI = re.compile(r"\b(avx512_vnni|avx_vnni|avx_vnni_int8|amx_int8)\b")
ARM_DOT = re.compile(r"\b(asimddp|i8mm)\b")


def providers() -> tuple[str, ...]:
    """The providers that this onnxruntime has, of those that run such files, the fastest kind first."""
    need_onnx("running an ONNX file")
    import onnxruntime

    have = set(onnxruntime.get_available_providers())
    return tuple(name for name in PREFERRED if name in have)


def has_integer_products(cpuinfo: str | None = None) -> bool:
    """Whether the processor adds products of 8-bit integers into 32 bits in one instruction; `cpuinfo`: that of Linux.

    Without one, sums of pairs of products pass through 16 bits and may saturate.
    """
    if cpuinfo is None:
        try:
            cpuinfo = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return False
    return bool(VNNI.search(cpuinfo) or ARM_DOT.search(cpuinfo))


def opened_on(file: Path | bytes, threads: int = 0, wanted: tuple[str, ...] = (), severity: int = WARNINGS_OFF) -> Any:
    """A session of a file, or of its content, on the best provider there is or on `wanted` ones.

    Raises UserError for a provider that is not there and for what onnxruntime cannot load.
    """
    have, where = providers(), file if isinstance(file, Path) else "a graph"
    if missing := [name for name in wanted if name not in have]:
        raise UserError(f"{where}: {missing[0]} is not in this onnxruntime; it has {', '.join(have)}")
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = severity
    options.intra_op_num_threads = threads
    given = str(file) if isinstance(file, Path) else file
    try:
        return onnxruntime.InferenceSession(given, options, providers=list(wanted or have))
    except Exception as error:  # its own kinds have no common base
        raise UserError(f"{where}: onnxruntime cannot load it ({' '.join(str(error).split())[:200]})") from None
