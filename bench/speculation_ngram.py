"""Guesses of n-grams where a text repeats itself, SmolLM2 in 4 bits and in float32: bench/results/speculation_ngram.json.

Prompts are paragraphs of a novel, twice and the beginning of a third time: what is asked for is the rest of it. The same beside
paragraphs that stand once, where there is little to look up. The costs of verifying are measured with them.
"""

from __future__ import annotations

import sys
from typing import Any

from burnish.data.text import Texts
from burnish.serve.served import Served
from burnish.serve.speculative.gate import LENGTHS
from burnish.serve.speculative.trial import costs_of
from drafted import OPTIONS, gated, opened, tried
from record import record

COUNT, PART = 8, 96  # prompts, tokens of a paragraph
BEGUN, APART = 24, 4000  # tokens of it that stand again, letters between paragraphs


def prompts(served: Served, times: int) -> list[tuple[int, ...]]:
    """Stretches of a novel, so many times over, and the beginning of the last one again."""
    text = "".join(Texts.open(["asset:austen/persuasion"]).documents())[20_000:]
    parts = [served.prompt_of(text[k * APART : (k + 1) * APART])[:PART] for k in range(COUNT)]
    return [part * times + (part[:BEGUN] if times > 1 else ()) for part in parts]


def main() -> int:
    """Measure, record, print."""
    values: dict[str, Any] = {}
    for weights in ("q4", "float"):
        engine, served = opened("ngram", weights)
        repeated = prompts(served, 2)
        assert engine.speculator is not None
        values |= tried(f"{weights}.repeated", engine, repeated)
        costs = costs_of(engine, engine.speculator.draft, repeated, 1, OPTIONS)
        values |= {f"{weights}.verify.{length}": costs.verify(length) for length in LENGTHS}
        values[f"{weights}.step"] = costs.step
        values[f"{weights}.gated"] = 1 / gated(engine, repeated)
        if weights == "q4":
            values |= tried("q4.once", engine, prompts(served, 1))
    print(record("speculation_ngram", values), values)
    return 0


if __name__ == "__main__":
    sys.exit(main())
