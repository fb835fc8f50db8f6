"""Checkpointing, full and selective, against none on 25 million parameters: bench/results/checkpointing.json.

Steps of the modes alternate in one process; a time is the median over rounds of the ratio within a round.
"""

from __future__ import annotations

import argparse
import time
from statistics import median

import torch

from burnish.config import ModelConfig
from burnish.measure import observed_step
from burnish.prove.checkpointing import predicted_totals, random_batch, totals, trainable_of
from record import record

MODES = ("none", "full", "selective")
PUBLISHED, FLAGGED = "1.2 to 1.3", (1.15, 1.40)
ROWS, SEQ = 2, 512


def model() -> ModelConfig:
    return ModelConfig(
        vocab=2048, hidden=512, ffn=1408, heads=8, kv_heads=4, layers=8, head_dim=64, tied=True, max_positions=SEQ
    )


def measure(rounds: int) -> dict[str, float | int | str]:
    """FLOPs and saved bytes of an observed step, then seconds of `rounds` steps of each mode in turn."""
    config = model()
    batch = random_batch(config, ROWS, SEQ)
    trainables = {mode: trainable_of(config, mode) for mode in MODES}
    seen = {mode: totals(observed_step(trainables[mode], [batch], 1e-4)[1]) for mode in MODES}
    wall: dict[str, list[float]] = {mode: [] for mode in MODES}
    busy: dict[str, list[float]] = {mode: [] for mode in MODES}
    for number in range(rounds):
        for mode in MODES[number % 3 :] + MODES[: number % 3]:
            began, spent = time.perf_counter(), time.process_time()
            trainables[mode].step([batch], 1e-4)
            wall[mode].append(time.perf_counter() - began)
            busy[mode].append(time.process_time() - spent)
    values: dict[str, float | int | str] = {"parameters": config.parameters, "rounds": rounds, "tokens": ROWS * SEQ}
    values |= {"threads": torch.get_num_threads(), "published_time_ratio": PUBLISHED}
    for mode in MODES:
        values[f"{mode}_seconds"] = median(wall[mode])
        values[f"{mode}_saved_bytes"] = seen[mode][1]
    exact = all(seen[mode] == predicted_totals(config, mode, ROWS, SEQ) for mode in MODES)
    for mode, prefix in (("full", ""), ("selective", "selective_")):
        values[f"{prefix}flops_ratio"] = seen[mode][0] / seen["none"][0]
        values[f"{prefix}saved_ratio"] = seen[mode][1] / seen["none"][1]
        values[f"{prefix}time_ratio"] = median(a / b for a, b in zip(wall[mode], wall["none"], strict=True))
        values[f"{prefix}cpu_time_ratio"] = median(a / b for a, b in zip(busy[mode], busy["none"], strict=True))
    return values | {"predicted_equals_observed": exact}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    found = measure(parser.parse_args().rounds)
    print(record("checkpointing", found))
    for key, value in found.items():
        print(f"  {key:<28}{value:.4g}" if isinstance(value, float) else f"  {key:<28}{value}")
    low, high = FLAGGED
    outside = not low <= float(found["time_ratio"]) <= high
    print(
        f"full: time x{found['time_ratio']:.3f}, published {PUBLISHED}"
        + (f"; OUTSIDE {low} to {high}" if outside else "")
    )
