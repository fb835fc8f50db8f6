"""Seconds of a search over all mappings, and of the whole command in a fresh process: bench/results/plan_speed.json."""

from __future__ import annotations

import statistics
import time

from burnish.planner import Request, plan_model, request
from burnish.planner.search import search
from command_line import seconds
from record import record

CASES = {
    "70b_64": ("llama3-70b", "h100-sxm:8x8", 8192, 256),
    "405b_16384": ("llama3-405b", "h100-sxm:2048x8", 8192, 2048),
    "671b_2048": ("deepseek-v3", "h100-sxm:256x8", 4096, 15360),
}
RUNS = 5


def timed(asked: Request) -> dict[str, float]:
    """Median seconds of the search alone and of the plan with its reasons, and how many mappings were looked at."""
    spent: dict[str, list[float]] = {"search": [], "plan": []}
    for _ in range(RUNS):
        for name, work in (("search", search), ("plan", plan_model)):
            began = time.perf_counter()
            work(asked)
            spent[name].append(time.perf_counter() - began)
    return {f"{name}_seconds": statistics.median(times) for name, times in spent.items()} | {
        "mappings": search(asked).considered
    }


if __name__ == "__main__":
    values: dict[str, float] = {}
    for name, (model, there, seq, batch) in CASES.items():
        values |= {f"{key}_{name}": value for key, value in timed(request(model, there, seq, batch)).items()}
        words = ("--cluster", there, "--seq", str(seq), "--batch", str(batch))
        values[f"command_seconds_{name}"] = seconds("plan", model, *words)
    print(record("plan_speed", values), values)
