"""Waiting: which collective a rank is in, as torch's flight recorder and its stack say, and whether one is broken.

The recorder keeps the collectives of gloo and NCCL in the order in which they were started; the oldest one that has not
ended is what a rank waits for, also where it was started to run beside something else.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from contextlib import suppress
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


def under_way() -> str:
    """The oldest collective of this process that has not ended, else the last, which broke; empty where none is known."""
    with suppress(Exception):  # the recorder has no public name, and other versions of torch may have none
        from torch._C import _distributed_c10d as communication

        entries = json.loads(getattr(communication, "_dump_fr_trace_json")(True, False))["entries"]  # noqa: B009
        open_ones = [entry for entry in entries if not entry["retired"]]
        return str((open_ones or entries[-1:])[0]["profiling_name"]).rpartition(":")[2]
    return ""


def waiting_in(frames: Iterable[FrameType], recorded: str = "") -> str:
    """The collective that `frames`, the innermost first, are in, and the function of ours that called or waits for it.

    `recorded` is what the flight recorder says; where it says nothing, the stack names the collective too.
    """
    collective = recorded
    for frame in frames:
        name, file = frame.f_code.co_name, frame.f_code.co_filename
        if _TORCH in file and name not in _INNER and not name.startswith("_"):
            collective = collective or name
        elif "/burnish/" in file and "/burnish/launch/" not in file:
            caller = frame.f_code.co_qualname.replace(".<locals>", "")
            return f"{collective} of {caller}" if collective else caller
    return collective or "a collective"
