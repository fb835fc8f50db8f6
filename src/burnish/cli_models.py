"""The model verbs: fetch one, and look into one."""

from __future__ import annotations

import json as json_
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Annotated

import typer
from typer import Argument, Option


def fetch(
    model: Annotated[str, Argument(help="A shipped name (smollm2, minilm), or ORG/NAME[@REVISION] of the hub.")],
    check: Annotated[bool, Option("--check", help="Read all of it again, or ask the hub for a newer one.")] = False,
) -> None:
    """Download a model and say where it lies, its licence, and what to do next."""
    from burnish import streams
    from burnish.load import fetch_text

    with watching(f"fetching {model}") as progress:
        lines = list(fetch_text.fetch(model, check, progress))
    for line in lines:
        print(streams.printable(line))


def inspect(
    model: Annotated[str, Argument(help="A folder, a run, a .gguf file, a shipped name, or ORG/NAME of the hub.")],
    json: Annotated[bool, Option("--json", help="Print JSON, each tensor included.")] = False,
    tensors: Annotated[bool, Option("--tensors", help="Also list every tensor.")] = False,
) -> None:
    """Say what a model is: family, sizes, formats, tokenizer, what it lacks, and the memory it needs."""
    from burnish import streams
    from burnish.load import inspect_text
    from burnish.load.inspect_model import inspect_model
    from burnish.load.source import open_model

    with watching(f"fetching {model}") as progress:
        found = inspect_model(open_model(model, progress))
    if json:
        print(json_.dumps(found, indent=1))
        return
    for line in (*inspect_text.described(found), *(inspect_text.tensors(found) if tensors else ())):
        print(streams.printable(line))


@contextmanager
def watching(name: str) -> Iterator[Callable[[int, int], None]]:
    """Told bytes done and in all; the first telling opens a bar, so that what is already there shows none."""
    with ExitStack() as stack:
        bars: list[Callable[..., None]] = []

        def told(done: int, total: int) -> None:
            from burnish.progress import Screen

            if not bars:
                bars.append(stack.enter_context(Screen().task(name)))
            bars[0](done >> 20, total >> 20, "MiB")

        yield told


def register(app: typer.Typer) -> None:
    """Make them verbs of the command line."""
    app.command()(fetch)
    app.command()(inspect)
