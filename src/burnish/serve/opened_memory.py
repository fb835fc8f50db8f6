"""Memory while a model is opened: what comes and goes by megabytes leaves no gaps behind.

glibc keeps what is freed below what is still held, and steps would later spread over such gaps. Arrays that are mapped by
themselves go back to the system as they are freed (mallopt(3), M_MMAP_THRESHOLD).
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager

TRIM, MAP = -1, -3  # numbers of the two parameters
OPENING = {MAP: 2**17}  # as glibc starts
SERVING = {
    MAP: 2**25,
    TRIM: 2**26,
}  # as it would end by itself: a step's tensors are taken from the heap, and stay there


@contextmanager
def mapped() -> Iterator[None]:
    """For the time of opening a model. Where the system's library is another one nothing changes."""
    _set(OPENING)
    try:
        yield
    finally:
        _set(SERVING)


def _set(values: dict[int, int]) -> None:
    change = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if change is not None:
        for name, value in values.items():
            change(name, value)
