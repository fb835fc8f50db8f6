"""The gate by the clock: acceptance by cost of a guess, and a draft of random weights: bench/results/speculation_gate.json.

A random decoder writes texts with a draft of set acceptance and cost and without one, a step of each in turn, so that what disturbs
one disturbs both. The first texts are a warm-up; a cell is the median over the others of time with for time without.
"""

from __future__ import annotations

import statistics
import sys
import time
from typing import Any

import numpy as np
import torch

from burnish.config import ModelConfig
from burnish.models.decoder import Decoder
from burnish.serve.engine import Engine, Limits, Request
from burnish.serve.pages import Pages
from burnish.serve.runners.torch_runner import TorchRunner
from burnish.serve.sampling import Sampling
from burnish.serve.speculative.draft import Draft
from burnish.serve.speculative.forced import ForcedDraft
from burnish.serve.speculative.gate import LENGTHS
from burnish.serve.speculative.model_draft import ModelDraft
from burnish.speculation import best_length
from record import record

VOCAB, NEW, WARM, TEXTS = 512, 120, 2, 9
ACCEPTANCES = [number / 10 for number in range(11)]
COSTS = (0.05, 0.1, 0.2, 0.3, 0.5)  # of a guess, in plain steps
LIMITS = Limits(pages=64, page=16, rows=1)
CLOCK = time.perf_counter


def runner(seed: int, **sizes: int) -> TorchRunner:
    """A random decoder whose step costs little more for a few tokens more."""
    shape = ModelConfig(vocab=VOCAB, max_positions=256, init_std=0.2, **sizes)  # type: ignore[arg-type]
    return TorchRunner(Decoder(shape, torch.Generator().manual_seed(seed)).eval(), shape)


def start(engine: Engine, prompt: tuple[int, ...], tokens: list[int]) -> None:
    """Ask for a text and read its prompt."""
    engine.submit(Request(prompt, Sampling(max_new_tokens=NEW)), lambda output: tokens.extend(output.ids))
    engine.step()


class Cell:
    """An engine with a draft beside one without."""

    def __init__(self, target: TorchRunner, draft: Draft) -> None:
        self.plain, self.drafted = Engine(target, LIMITS), Engine(target, LIMITS)
        self.speculator = self.drafted.speculate(draft)

    def ratio(self, prompt: tuple[int, ...]) -> float:
        """Time with for time without, of one text."""
        texts: tuple[list[int], list[int]] = ([], [])
        seconds, engines = [0.0, 0.0], (self.plain, self.drafted)
        for engine, tokens in zip(engines, texts, strict=True):
            engine.pages.forget()
            start(engine, prompt, tokens)
        while any(engine.busy for engine in engines):
            for number, engine in enumerate(engines):
                if engine.busy:
                    began = CLOCK()
                    engine.step()
                    seconds[number] += CLOCK() - began
        return seconds[1] / seconds[0]

    def median(self, prompts: list[tuple[int, ...]]) -> float:
        """Of texts after the warm-up."""
        return statistics.median([self.ratio(prompt) for prompt in prompts][WARM:])


def written(target: TorchRunner, prompt: tuple[int, ...]) -> tuple[list[int], float]:
    """A text, and the median seconds of its steps."""
    engine, tokens, seconds = Engine(target, LIMITS), list[int](), list[float]()
    start(engine, prompt, tokens)
    while engine.busy:
        began = CLOCK()
        engine.step()
        seconds.append(CLOCK() - began)
    return tokens, statistics.median(seconds)


def spin(seconds: float) -> None:
    """Be busy for so long, as a draft would be."""
    until = CLOCK() + seconds
    while CLOCK() < until:
        pass


def grid(target: TorchRunner, prompts: list[tuple[int, ...]]) -> dict[str, Any]:
    """Each cell, the worst, and the least share of what there is to gain that is gained."""
    found = {prompt: written(target, prompt) for prompt in prompts}
    texts = {prompt: tokens for prompt, (tokens, _) in found.items()}
    step = statistics.median(seconds for _, seconds in found.values())
    values: dict[str, Any] = {"step": step}
    worst, shares = 0.0, []
    for cost in COSTS:
        for acceptance in ACCEPTANCES:
            cell = Cell(target, ForcedDraft(texts, acceptance, cost * step, spin))
            ratio = cell.median(prompts)
            steps = cell.speculator.gate.steps
            best = best_length(
                acceptance,
                cost,
                lambda k, steps=steps: steps.at(1, 1 + k) / steps.plain(1),  # type: ignore[misc]
                longest=LENGTHS[-1],
            )
            values[f"cell.{cost}.{acceptance}"] = ratio
            values[f"best.{cost}.{acceptance}"] = best.speedup
            worst = max(worst, ratio)
            if best.speedup > 1.25:
                shares.append((1 / ratio - 1) / (best.speedup - 1))
    return values | {"cells": len(COSTS) * len(ACCEPTANCES), "worst": worst, "least_share": min(shares)}


def main() -> int:
    """Measure, record, print."""
    torch.set_num_threads(1)
    target = runner(0, hidden=128, ffn=352, layers=8, heads=4, kv_heads=2)
    draw = np.random.default_rng(0)
    prompts = [tuple(draw.integers(VOCAB, size=8).tolist()) for _ in range(WARM + TEXTS)]
    values = grid(target, prompts)
    small = runner(1, hidden=64, ffn=96, layers=1, heads=2, kv_heads=1)
    values["random"] = Cell(target, ModelDraft("random", small, Pages(64, 16), VOCAB, VOCAB)).median(prompts)
    print(record("speculation_gate", values), values)
    return 0


if __name__ == "__main__":
    sys.exit(main())
