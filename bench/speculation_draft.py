"""A draft that has learned SmolLM2's own letters (recipe distill-draft), SmolLM2 in 4 bits: bench/results/speculation_draft.json.

bench/speculation_draft.py [RUN]    RUN: a finished run of the recipe; without it, it is trained first

Letters to people it never saw, of occasions it never saw, and a novel, which is not its field: there the advice is not to draft,
and the engine does not.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from burnish.data.text import Texts
from burnish.run import run
from burnish.serve.served import Served
from drafted import gated, opened, tried
from letters import new_names, new_occasions
from record import record

COUNT, PART, APART = 12, 96, 4000  # prompts of each kind; tokens and letters of those of a novel


def asked(served: Served, questions: list[str]) -> list[tuple[int, ...]]:
    """Prompts of some questions, evenly spread."""
    chosen = [questions[k * len(questions) // COUNT] for k in range(COUNT)]
    return [served.chat_of([{"role": "user", "content": question}]) for question in chosen]


def novel(served: Served) -> list[tuple[int, ...]]:
    """Prompts of a novel."""
    text = "".join(Texts.open(["asset:austen/persuasion"]).documents())[20_000:]
    return [served.prompt_of(text[k * APART : (k + 1) * APART])[:PART] for k in range(COUNT)]


def measured(draft: Path) -> dict[str, Any]:
    """Gains and acceptances of each kind of prompts."""
    engine, served = opened(str(draft), "q4")
    people, occasions = asked(served, new_names()), asked(served, new_occasions())
    values = tried("people", engine, people) | tried("occasions", engine, occasions)
    values |= tried("novel", engine, novel(served))
    for name, prompts, value in (("people", people, "gated"), ("novel", novel(served), "gated_time")):
        engine, served = opened(str(draft), "q4")  # a gate that has seen nothing yet
        time_for_time = gated(engine, prompts)
        values[f"{name}.{value}"] = 1 / time_for_time if name == "people" else time_for_time
    assert engine.speculator is not None
    print(engine.speculator.summary())
    return values


def main() -> int:
    """Train where needed, measure, record, print."""
    with tempfile.TemporaryDirectory() as scratch:
        place, began = Path(sys.argv[1] if len(sys.argv) > 1 else scratch + "/run"), time.perf_counter()
        run("distill-draft", folder=place, quiet=True)
        took = time.perf_counter() - began
        values = measured(place) | ({} if len(sys.argv) > 1 else {"training_seconds": took})
    print(record("speculation_draft", values), values)
    return 0


if __name__ == "__main__":
    sys.exit(main())
