"""The generate verb: parse, call, print. Options are the fields of one record."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Annotated, Any

from typer import Argument, Option


@dataclass(frozen=True)
class Options:
    """What `burnish generate` takes."""

    model: Annotated[str, Argument(help="A model folder, a run folder, a .gguf file, or a model's name.")]
    prompt: Annotated[list[str], Argument(help="One or more prompts.")]
    max_new_tokens: Annotated[int, Option(min=1, help="Most tokens to write.")] = 100
    temperature: Annotated[float, Option(min=0.0, help="0 takes the likeliest token.")] = 0.0
    top_k: Annotated[int, Option(min=0, help="Keep the k likeliest tokens; 0 keeps all.")] = 0
    top_p: Annotated[float, Option(help="Keep the likeliest tokens up to this probability.")] = 1.0
    seed: Annotated[int, Option(min=0, help="Seed of the draw.")] = 0
    stop: Annotated[list[str] | None, Option(help="Text to stop before; may be repeated.")] = None
    draft: Annotated[str | None, Option(help="Guess tokens: ngram, skip:N, or a small model of the same tokens.")] = (
        None
    )
    exact: Annotated[bool, Option("--exact", help="The same last digits with a draft as without, slower.")] = False


def generate(options: Options) -> None:
    """Continue prompts with a model."""
    from burnish.finished import require_torch

    given = vars(options)
    settings: dict[str, Any] = {
        name: given[name] for name in ("max_new_tokens", "temperature", "top_k", "top_p", "seed")
    }
    settings["stop"] = tuple(options.stop or ())
    require_torch("burnish generate")
    from burnish.serve.prompts import Helped, continued

    engine = options.draft is not None or options.exact
    helped = Helped(options.draft, options.exact, _said) if engine else None
    for text in continued(options.model, options.prompt, settings, lambda said: _said(f"warning: {said}"), helped):
        print(text)


def _said(text: str) -> None:
    print(text, file=sys.stderr)
