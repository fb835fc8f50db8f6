"""Parts of SmolLM2 in 4 bits looked at one by one, from their layer on and in whole runs: bench/results/sensitivity.json."""

from __future__ import annotations

import copy
import time
from typing import Any

from burnish.compress.divergence import TokenProbe
from burnish.compress.sample_files import read_samples
from burnish.compress.sensitivity import alone, mixed, parts_of
from burnish.compress.subject import subject_of
from burnish.load.source import open_model
from burnish.mesh import Mesh
from burnish.techniques import awq
from record import record

ROWS, LENGTH, EVERY = 2, 128, 3  # of the parts every so many-th is looked at, in both ways


def measure() -> dict[str, Any]:
    """Seconds of both ways in turn, and how far their numbers are apart."""
    checkpoint = open_model("smollm2")
    model: Any = subject_of("smollm2", checkpoint, "cpu").model
    made = awq.apply(awq.Config(method="rtn", group=64), copy.deepcopy(model), Mesh())
    samples, _ = read_samples(checkpoint, ["asset:austen/persuasion"], ROWS, LENGTH)
    probe = TokenProbe(model, samples)
    parts = parts_of(model, made)[::EVERY]
    began = time.perf_counter()
    short = alone(model, made, parts, probe)
    between = time.perf_counter()
    whole = [probe.seen(mixed(model, made, [part])).divergence for part in parts]
    ended = time.perf_counter()
    return {
        "parts": len(parts),
        "tokens": samples.tokens,
        "seconds": {"from the layer on": between - began, "whole": ended - between},
        "times": (ended - between) / (between - began),
        "apart": max(float(abs(a - b)) for a, b in zip(short, whole, strict=True)),
    }


if __name__ == "__main__":
    found = measure()
    print(record("sensitivity", found), found)
