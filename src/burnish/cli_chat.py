"""The chat verb: parse, call, print. Options are the fields of one record."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated

from typer import Argument, Option

from burnish.cli_engine import EngineOptions, check_engine, engine_settings
from burnish.errors import PartlyDone


@dataclass(frozen=True)
class Options(EngineOptions):
    """What `burnish chat` takes."""

    model: Annotated[str, Argument(help="A model folder, a run folder, a .gguf file, or a model's name.")]
    system: Annotated[str, Option(help="What the model is told before the conversation.")] = ""
    max_new_tokens: Annotated[int, Option(min=1, help="Most tokens of an answer.")] = 512
    temperature: Annotated[float, Option(min=0.0, help="0 takes the likeliest token.")] = 0.7
    top_k: Annotated[int, Option(min=0, help="Keep the k likeliest tokens; 0 keeps all.")] = 0
    top_p: Annotated[float, Option(help="Keep the likeliest tokens up to this probability.")] = 0.95
    min_p: Annotated[float, Option(help="Keep tokens of at least this share of the likeliest one's.")] = 0.0
    presence_penalty: Annotated[float, Option(help="Lower the scores of tokens that an answer has.")] = 0.0
    frequency_penalty: Annotated[float, Option(help="The same, each time it has them.")] = 0.0
    seed: Annotated[int, Option(min=0, help="Seed of the first answer; the next ones count on from it.")] = 0
    stop: Annotated[list[str] | None, Option(help="Text to stop an answer before; may be repeated.")] = None
    draft: Annotated[str | None, Option(help="Guess tokens: ngram, skip:N, or a small model of the same tokens.")] = (
        None
    )
    verbose: Annotated[bool, Option("--verbose", help="Figures after each answer.")] = False


def chat(options: Options) -> None:
    """Talk with a model; lines are questions, /help lists commands."""
    from burnish.finished import require_torch

    check_engine(options)
    require_torch("burnish chat")
    if not _talk(options):
        raise PartlyDone("some questions were not answered; the lines above say why")


def _talk(options: Options) -> bool:
    from burnish.serve.chat import Chat
    from burnish.serve.chat_terminal import Terminal, talk
    from burnish.serve.opening import open_served
    from burnish.serve.sampling import Sampling
    from burnish.streams import printable

    given = vars(options)
    names = (
        "max_new_tokens",
        "temperature",
        "top_k",
        "top_p",
        "min_p",
        "presence_penalty",
        "frequency_penalty",
        "seed",
    )
    sampling = Sampling(**{name: given[name] for name in names}, stop=tuple(options.stop or ()))
    engine, served, _ = open_served(options.model, engine_settings(options, rows=1, queue=1, draft=options.draft))
    with suppress(ImportError):  # where it is there, lines typed can be edited and called back
        import readline  # noqa: F401
    terminal = Terminal(_line, sys.stdout, sys.stderr, printable, *_seen(), options.verbose)
    made = Chat(engine, served, sampling, options.system)
    if terminal.typed:
        terminal.note(
            f"{served.name}, context {served.room:,} tokens; Ctrl-C stops an answer, Ctrl-D leaves, /help helps"
        )
    fine = talk(made, terminal)
    if engine.speculator is not None and made.totals.answers:
        terminal.note(engine.speculator.summary())
    return fine


def _line(prompt: str) -> str:
    """A line of standard input. Raises EOFError at its end."""
    if prompt:
        return input(prompt)
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line.rstrip("\r\n")


def _seen() -> tuple[bool, bool]:
    """Whether a person types, and whether notes may have colours."""
    typed = sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return typed, bool(sys.stderr is not None and sys.stderr.isatty() and not plain)
