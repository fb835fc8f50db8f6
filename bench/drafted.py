"""What benches of drafts share: SmolLM2 with a draft on prompts, what is expected of it and what was measured."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from burnish.serve.engine import Engine
from burnish.serve.opening import Settings, open_served
from burnish.serve.sampling import Sampling
from burnish.serve.served import Served
from burnish.serve.speculative.trial import Found, trial, write

THREADS, NEW, STEP = 2, 64, 256
OPTIONS = Sampling(max_new_tokens=NEW)
Prompts = Sequence[tuple[int, ...]]


def opened(draft: str, weights: str, rows: int = 1) -> tuple[Engine, Served]:
    """SmolLM2 and a draft in the runner of onnxruntime."""
    settings = Settings(
        2**30,
        rows=rows,
        tokens=STEP,
        weights=weights,  # type: ignore[arg-type]
        runner="onnxruntime",
        threads=THREADS,
        draft=draft,
    )
    engine, served, _ = open_served("smollm2", settings)
    return engine, served


def of_trial(name: str, found: Found) -> dict[str, Any]:
    """Values of one number of sequences at once. `off`: how far the formula is from what was measured, percent."""
    (advice,) = found.advice
    values: dict[str, Any] = {
        "acceptance": found.stood.pooled,
        "guesses": found.stood.guesses,
        "offered": found.stood.offered,
        "length": advice.length,
        "predicted": advice.speedup,
        "draft_cost": advice.draft,
        "verify_cost": advice.verify,
        "tokens_a_round": advice.tokens,
        "least_acceptance": advice.least,
        "dearest_guess": advice.dearest,
        "texts_apart": len(found.apart),
    }
    if advice.measured is not None:
        values |= {"measured": advice.measured, "off": 100 * abs(advice.speedup / advice.measured - 1)}
    return {f"{name}.{key}": value for key, value in values.items()}


def tried(name: str, engine: Engine, prompts: Prompts, rows: int = 1) -> dict[str, Any]:
    """A trial, after a warm-up."""
    warm(engine, prompts)
    return of_trial(name, trial(engine, prompts, OPTIONS, [rows]))


def warm(engine: Engine, prompts: Prompts) -> None:
    """Write one text without the draft."""
    speculator, engine.speculator = engine.speculator, None
    write(engine, prompts[:1], OPTIONS, 1)
    engine.speculator = speculator


def gated(engine: Engine, prompts: Prompts) -> float:
    """Time of the engine as its gate has it for time without a draft: prompts in turn, the first for the gate to learn by."""
    speculator = engine.speculator
    assert speculator is not None
    speculator.fixed, ratios = None, []
    for prompt in prompts:
        seconds = []
        for own in (None, speculator):
            engine.speculator = own
            run = write(engine, [prompt], OPTIONS, 1)
            seconds.append(run.seconds / max(run.tokens, 1))
        ratios.append(seconds[1] / seconds[0])
    return statistics.median(ratios[1:])
