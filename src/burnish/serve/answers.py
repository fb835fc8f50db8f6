"""Answers: what a model says to questions, kept as conversations that another one, such as its draft, can learn from.

Sequence-level distillation: Kim & Rush 2016, "Sequence-level knowledge distillation", arXiv 1606.07947, with the likeliest
token in place of a beam.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from burnish.errors import UserError
from burnish.records import write_text
from burnish.serve.engine import Output, Request
from burnish.serve.opening import Settings, open_served
from burnish.serve.sampling import Sampling


def write_answers(source: str | Path, questions: Sequence[str], path: Path, settings: Settings, most: int) -> int:
    """Ask a chat model each question, and write conversations of one turn as JSON lines; returns the tokens written.

    `most`: tokens of an answer; a longer one is kept up to there. The likeliest token is taken. Raises UserError as
    `open_served` does, for a model without a chat template, and where nothing is asked or answered.
    """
    if not questions:
        raise UserError("questions: there are none; one at least is needed")
    engine, served, _ = open_served(source, settings)
    options = Sampling(max_new_tokens=most, eos=served.ends or None)
    waiting = [(question, served.chat_of([{"role": "user", "content": question}])) for question in questions]
    outputs: dict[str, list[Output]] = {}
    while waiting or engine.busy:
        while waiting and len(engine.schedule.waiting) < min(settings.rows, settings.queue):
            question, prompt = waiting.pop(0)
            engine.submit(Request(prompt, options), outputs.setdefault(question, []).append)
        engine.step()
    lines, count = [], 0
    for question, found in outputs.items():
        answer = "".join(one.text for one in found).strip()
        if answer:
            turns = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
            lines.append(json.dumps({"messages": turns}, ensure_ascii=False))
            count += sum(len(one.ids) for one in found)
    if not lines:
        raise UserError(f"{source}: answered none of {len(questions)} questions; ask others")
    write_text(path, "\n".join(lines) + "\n")
    return count
