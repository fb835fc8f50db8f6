"""The eval verb: parse, call, print."""

from __future__ import annotations

import json as jsonlib
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from burnish.errors import UserError
from burnish.streams import printable


def evaluate(
    model: Annotated[str, typer.Argument(help="A model folder, a run folder, a GGUF file, or the name of a model.")],
    text: Annotated[str | None, typer.Option("--text", help="A text file or folder, or asset:NAME.")] = None,
    task: Annotated[
        Path | None, typer.Option("--task", help="Labelled examples, .jsonl or .csv; their columns say how to judge.")
    ] = None,
    length: Annotated[int | None, typer.Option("--length", min=2, help="Tokens of a window.")] = None,
    stride: Annotated[int | None, typer.Option("--stride", min=1, help="Tokens from one window to the next.")] = None,
    batch: Annotated[int, typer.Option("--batch", min=1, help="Windows, or examples, at once.")] = 4,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Judge a model: perplexity and bits per byte of a text, or labelled examples."""
    from burnish.finished import require_torch
    from burnish.progress import Screen

    if text is None and task is None:
        raise UserError("nothing to judge the model by; name a text with --text, or labelled examples with --task")
    if text is not None and task is not None:
        raise UserError("--text and --task: a model is judged by one of them at a time")
    if task is not None and (length is not None or stride is not None):
        raise UserError("--length and --stride are of windows over a --text; --task has none")
    require_torch("burnish eval")
    from burnish.evaluation.text import evaluate_text
    from burnish.runnable import pick_device

    device, why = pick_device("auto")
    screen = Screen()
    screen.say(f"{model} on {device} ({why})")
    if text is None:
        assert task is not None
        _judged(model, task, batch, device, json)
        return
    with screen.task("score tokens") as watch:
        found = evaluate_text(
            model, text, length, stride, batch, device, lambda done, total, left: watch(done, total, "", left)
        )
    if json:
        print(jsonlib.dumps(found, indent=1))
        return
    print(f"perplexity: {found['perplexity']:.4f} a token")
    print(f"bits per byte: {found['bits_per_byte']:.4f}")
    print(f"scored: {found['tokens']:,} tokens, {found['bytes']:,} bytes, in {found['seconds']:.1f} s")
    print(f"windows: {found['length']} tokens, {found['stride']} apart, {found['dtype']}")


def _judged(model: str, task: Path, batch: int, device: str, json: bool) -> None:
    """Judge by labelled examples and print: how in the first line, then what was found."""
    from burnish.evaluation.task import evaluate_task, task_lines
    from burnish.load.source import open_model
    from burnish.progress import Screen

    with Screen().task("judge examples") as watch:
        found = evaluate_task(open_model(model), task, batch=batch, device=device, progress=watch)
    if json:
        scores = {name: value for name, value in asdict(found).items() if name != "right"}
        print(jsonlib.dumps({"model": model, "task": str(task), "device": device} | scores, indent=1))
        return
    for line in task_lines(found):
        print(printable(line))
