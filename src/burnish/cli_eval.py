"""The eval verb: parse, call, print."""

from __future__ import annotations

import json as jsonlib
from typing import Annotated

import typer

from burnish.errors import UserError


def evaluate(
    model: Annotated[str, typer.Argument(help="A model folder, a run folder, a GGUF file, or the name of a model.")],
    text: Annotated[str | None, typer.Option("--text", help="A text file or folder, or asset:NAME.")] = None,
    length: Annotated[int | None, typer.Option("--length", min=2, help="Tokens of a window.")] = None,
    stride: Annotated[int | None, typer.Option("--stride", min=1, help="Tokens from one window to the next.")] = None,
    batch: Annotated[int, typer.Option("--batch", min=1, help="Windows at once.")] = 4,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Judge a model: perplexity and bits per byte of a text."""
    from burnish.finished import require_torch
    from burnish.progress import Screen

    if text is None:
        raise UserError("nothing to judge the model by; name a text with --text")
    require_torch("burnish eval")
    from burnish.evaluation.text import evaluate_text
    from burnish.runnable import pick_device

    device, why = pick_device("auto")
    screen = Screen()
    screen.say(f"{model} on {device} ({why})")
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
