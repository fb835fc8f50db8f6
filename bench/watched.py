"""Watched: wall time, processor time and the most resident memory above what stood before, of one piece of work."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PAGE = 4096
EVERY = 0.02  # seconds between two looks


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


@contextmanager
def watched(found: dict[str, float]) -> Iterator[None]:
    """Fill `found` with `seconds`, `cpu_seconds` and `above_bytes` once the work is done."""
    before = most = resident()
    done = threading.Event()

    def look() -> None:
        nonlocal most
        while not done.wait(EVERY):
            most = max(most, resident())

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    wall, cpu = time.perf_counter(), time.process_time()
    try:
        yield
    finally:
        found["seconds"], found["cpu_seconds"] = time.perf_counter() - wall, time.process_time() - cpu
        done.set()
        thread.join()
        found["above_bytes"] = float(max(most, resident()) - before)
