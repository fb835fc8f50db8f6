"""Waiting: which collective a rank is in, read off its stack, and whether an error is that of a broken one."""

from __future__ import annotations

import re
from collections.abc import Iterable
from types import FrameType

# What torch's communication raises has types of its own on some paths and is a RuntimeError on others.
_BROKEN = re.compile(
    r"gloo|nccl|connection (closed|reset|was likely closed)|broken pipe|timed out|TCPStore|socket", re.I
)
_TORCH = "torch/distributed/"
_INNER = ("wrapper", "_wrapped", "__call__", "inner")  # that stand between a collective and its caller


def broken_collective(error: BaseException) -> bool:
    """Whether an error says that another rank cannot be reached."""
    if not isinstance(error, RuntimeError):
        return False
    return type(error).__name__.startswith("Dist") or _BROKEN.search(str(error)) is not None


def waiting_in(frames: Iterable[FrameType]) -> str:
    """The collective that `frames`, the innermost first, are in, and the function of ours that called it."""
    collective = ""
    for frame in frames:
        name, file = frame.f_code.co_name, frame.f_code.co_filename
        if _TORCH in file and name not in _INNER and not name.startswith("_"):
            collective = name
        elif "/burnish/" in file and "/burnish/launch/" not in file:
            caller = frame.f_code.co_qualname.replace(".<locals>", "")
            return f"{collective} of {caller}" if collective else caller
    return collective or "a collective"
