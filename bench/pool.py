"""Keys and values of requests of varying lengths in pages of a pool, in tensors that grow, in tensors of the longest length:
allocations, positions reserved for those used, and how long a step takes. bench/results/pool.json.
"""

from __future__ import annotations

import time

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile

from burnish.config import ModelConfig
from burnish.serve.cache_ways import Grown, Padded, Pooled, Way, drive, varied
from record import record

REQUESTS, ROWS, LONGEST, PAGE = 64, 16, 512, 16
SHAPE = ModelConfig(
    vocab=64, hidden=576, ffn=64, heads=9, kv_heads=3, head_dim=64, layers=4, max_positions=LONGEST
)  # SmolLM2's heads, a few of its layers
LARGE = 2**15  # bytes from which on an allocation is one of keys or values


class Timed:
    """A way whose writes of single positions are timed."""

    def __init__(self, way: Way) -> None:
        self.way, self.seconds = way, list[float]()
        self.drop = way.drop

    @property
    def reserved(self) -> int:
        return self.way.reserved

    def write(self, number: int, start: int, keys_SKD: torch.Tensor) -> None:
        began = time.perf_counter()
        self.way.write(number, start, keys_SKD)
        if start:
            self.seconds.append(time.perf_counter() - began)


def main() -> None:
    torch.set_num_threads(1)
    trace = varied(REQUESTS, LONGEST)
    pages = ROWS * -(-LONGEST // PAGE)
    ways: dict[str, Way] = {
        "pool": Pooled(SHAPE, pages, PAGE),
        "grown": Grown(SHAPE),
        "padded": Padded(SHAPE, LONGEST),
    }
    values: dict[str, float] = {}
    for name, way in ways.items():
        drive(way, SHAPE, trace, ROWS)
        timed = Timed(way)
        steps = drive(timed, SHAPE, trace, ROWS)
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
            drive(way, SHAPE, trace[: REQUESTS // 4], ROWS)
        events = found.profiler.kineto_results.events()  # type: ignore[union-attr]
        large = [event.nbytes() for event in events if event.name() == "[memory]" and event.nbytes() >= LARGE]
        reserved, used = (sum(column) for column in zip(*steps, strict=True))
        p50, p99 = np.percentile(timed.seconds, (50, 99))
        values |= {f"{name}.allocations": len(large) / (REQUESTS // 4), f"{name}.reserved": reserved / used}
        values |= {f"{name}.p50": 1e6 * p50, f"{name}.p99": 1e6 * p99}
    print(record("pool", values), values)


if __name__ == "__main__":
    main()
