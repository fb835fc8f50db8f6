"""The fastest runner for a model on this machine: a few of its layers are measured in each, once, and the answer is kept."""

from __future__ import annotations

import copy
import hashlib
import json
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import nn

from burnish.config import ModelConfig
from burnish.hardware import detect
from burnish.lock import versions
from burnish.models.decoder import Decoder
from burnish.records import write_text
from burnish.serve.runners.runner import Runner

LAYERS, TIMES = 3, 5
FILE = "runners.json"
Build = Callable[[Decoder], Runner]


def fastest(builds: Mapping[str, Build], model: Decoder, config: ModelConfig, tokens: int, folder: Path) -> str:
    """The name of the runner whose steps of `tokens` are shortest: as `folder` has it of an earlier start, or measured now."""
    path, key = folder / FILE, mark(builds, config, tokens)
    known = _read(path)
    if known.get(key) not in builds:
        part = beginning(model)
        took = {name: seconds(build(part), tokens) for name, build in builds.items()}
        known[key] = min(took, key=lambda name: took[name])
        folder.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(known, indent=1, sort_keys=True) + "\n")
    return known[key]


def mark(builds: Mapping[str, Build], config: ModelConfig, tokens: int) -> str:
    """What the answer depends on: the processor and its threads, versions, sizes of the model and of a step."""
    here = detect()
    what = (sorted(builds), here.name, here.threads, torch.get_num_threads(), versions(), repr(config), tokens)
    return hashlib.sha256(repr(what).encode()).hexdigest()


def beginning(model: Decoder) -> Decoder:
    """A decoder of the first layers, which shares their weights."""
    part = copy.copy(model)
    part._modules = dict(model._modules)
    part.layers = nn.ModuleList(list(model.layers)[:LAYERS])
    return part


@torch.inference_mode()
def seconds(runner: Runner, tokens: int) -> float:
    """Median time of a step's layers, attention left out: it is the same for all runners."""
    ids, positions, took = torch.zeros(tokens, dtype=torch.int64), torch.arange(tokens), list[float]()
    for _ in range(TIMES + 1):
        began = time.perf_counter()
        made = runner.begin(ids, positions)
        for layer in range(min(LAYERS, runner.config.layers) - 1):
            made = runner.go_on(layer, made, made.q)
        took.append(time.perf_counter() - began)
    return statistics.median(took[1:])


def _read(path: Path) -> dict[str, str]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
