"""Memory that nothing uses any more, given back to the system: the allocator of C keeps what is freed below what is still held."""

from __future__ import annotations

import ctypes
import gc
import sys


def give_back() -> None:
    """Where the system's library can do it, that is with glibc (malloc_trim(3)); elsewhere nothing happens."""
    gc.collect()
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)
