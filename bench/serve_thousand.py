"""A thousand requests of varying lengths through SmolLM2's engine on two threads, after a warm-up, five times over: what grew,
how much memory there is beside what was predicted, how even the steps are (the median of the five, each recorded), and what is said
to a request that cannot fit.

bench/results/serve_thousand.json.
"""

from __future__ import annotations

import gc
import time
from pathlib import Path

import numpy as np
import torch

from burnish.errors import UserError
from burnish.graph_size import graph_bytes
from burnish.load.model import load_model
from burnish.load.source import open_model
from burnish.serve.engine import Engine, Request
from burnish.serve.opening import Settings, make_engine
from burnish.serve.sampling import Sampling
from record import record

THREADS, WARM, REQUESTS, TIMES = 2, 32, 1000, 5
PROMPTS, NEW = (8, 96), (8, 32)  # shortest and longest
# Tokens of a step: all rows, and about as many of prompts as come in while they write, so that steps are alike.
SETTINGS = Settings(2**28, rows=16, tokens=64, weights="q4", runner="onnxruntime", threads=THREADS)
PAGE = 2**12


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


def serve(engine: Engine, count: int, draw: np.random.Generator) -> list[float]:
    """Seconds of each step while there were requests enough to fill all rows."""
    left, seconds, ended = count, list[float](), list[str]()
    while left or engine.busy:
        while left and len(engine.schedule.waiting) < SETTINGS.rows:
            prompt = tuple(
                int(token) for token in draw.integers(0, engine.runner.config.vocab, draw.integers(*PROMPTS))
            )
            request = Request(prompt, Sampling(max_new_tokens=int(draw.integers(*NEW))))
            engine.submit(request, lambda output: ended.append(output.reason) if output.reason else None)
            left -= 1
        began = time.perf_counter()
        engine.step()
        if left:
            seconds.append(time.perf_counter() - began)
    assert ended.count("length") == count, set(ended)
    return seconds


def refused(engine: Engine) -> str:
    """What is said to a request larger than the pool; the server answers it with status 400."""
    try:
        engine.submit(Request((1,) * 8, Sampling(max_new_tokens=10**6)), print)
    except UserError as error:
        return str(error)
    return ""


def main() -> None:
    torch.set_num_threads(THREADS)
    model, config = load_model(open_model("smollm2"), dtype=torch.float32)
    draw = np.random.default_rng(0)
    before = resident()
    engine, size = make_engine(model, config, SETTINGS)
    held = engine.pool.bytes + engine.runner.bytes
    loaded = resident()
    serve(engine, WARM, draw)
    gc.collect()
    gc.freeze()
    warm, began = resident(), time.perf_counter()
    percentiles = np.array([np.percentile(serve(engine, REQUESTS, draw), (50, 99)) for _ in range(TIMES)])
    took = time.perf_counter() - began
    planned = size.pool_bytes + size.step_bytes
    said = refused(engine)
    uneven = percentiles[:, 1] / percentiles[:, 0]
    values = {
        "pool.growth": engine.pool.bytes + engine.runner.bytes - held,
        "resident.growth": (resident() - warm) / planned,
        "planned": planned,
        "memory": (held + max(0, warm - loaded)) / planned,
        "weights": loaded - before,
        "weights.predicted": sum(graph_bytes(config, {}, "q4", "int8", "int8")),
        "step.median": 1000 * np.median(percentiles[:, 0]),
        "step.p99": np.median(uneven),
        **{f"step.p99.{k}": one for k, one in enumerate(uneven)},
        "requests": TIMES * REQUESTS / took,
        "refused": float("max_new_tokens must be" in said),
    }
    print(record("serve_thousand", values), values, said)


if __name__ == "__main__":
    main()
