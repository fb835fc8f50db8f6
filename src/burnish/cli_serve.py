"""The serve verb: parse, call, print. Options are the fields of one record."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Annotated

from typer import Argument, Option

from burnish.cli_engine import EngineOptions, check_engine, engine_settings
from burnish.errors import MissingExtra, PartlyDone, UserError


@dataclass(frozen=True)
class Options(EngineOptions):
    """What `burnish serve` takes."""

    model: Annotated[str, Argument(help="A model folder, a run folder, a .gguf file, or a model's name.")]
    host: Annotated[str, Option(help="Address to listen on.")] = "127.0.0.1"
    port: Annotated[int, Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8000
    rows: Annotated[int, Option(min=1, help="Sequences that run at once.")] = 16
    step_tokens: Annotated[int, Option(min=1, help="Tokens of one step.")] = 256
    page: Annotated[int, Option(min=1, help="Positions of a page.")] = 16
    queue: Annotated[int, Option(min=1, help="Requests that may wait.")] = 256
    draft: Annotated[str | None, Option(help="Guess tokens: ngram, skip:N, or a small model of the same tokens.")] = (
        None
    )
    allocator: Annotated[str | None, Option(help="Of CUDA memory: native, expandable or async.")] = None
    name: Annotated[str | None, Option(help="What clients call the model.")] = None
    api_key: Annotated[str | None, Option(envvar="BURNISH_API_KEY", help="Clients must send it.")] = None
    timeout: Annotated[float | None, Option(min=0.001, help="Longest time of a request, in seconds.")] = None
    drain: Annotated[int, Option(min=0, help="Seconds to finish what runs at the end.")] = 30


def serve(options: Options) -> None:
    """Serve a model over HTTP, as clients of OpenAI's API expect it."""
    from burnish.finished import require_torch
    from burnish.serve.allocator import choose

    check_engine(options)
    if options.api_key == "":
        raise UserError("--api-key: it is empty; give one, or leave the option out")
    if options.allocator is not None:
        choose(options.allocator, os.environ)
    require_torch("burnish serve")
    try:
        import prometheus_client  # noqa: F401
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise MissingExtra("burnish serve", "serve", error.name or "starlette") from None
    if not _run(options):
        raise PartlyDone("some requests were cut off: they took longer than --drain allows")


def _run(options: Options) -> bool:
    import torch

    from burnish.progress import Screen
    from burnish.serve.allocator import check
    from burnish.serve.http.app import Rules
    from burnish.serve.http.start import run
    from burnish.serve.opening import open_served
    from burnish.units import show

    if options.allocator is not None and torch.cuda.is_available():
        check(options.allocator, torch.cuda.get_allocator_backend())
    screen = Screen()
    own = {"page": options.page, "rows": options.rows, "queue": options.queue, "name": options.name}
    settings = engine_settings(options, tokens=options.step_tokens, draft=options.draft, **own)
    engine, served, size = open_served(options.model, settings)
    screen.say(
        f"{served.name}: {type(engine.runner).__name__}, {size.pages:,} pages of {size.page} positions"
        f"{' in 8 bits' if engine.pool.scales else ''} in "
        f"{show(size.pool_bytes, 'bytes')}, at most {show(size.step_bytes, 'bytes')} a step (predicted)"
    )
    if (held := engine.runner.held) is not None:
        once_more = f", {show(held.whole, 'bytes')} once more in that of all layers" if held.whole else ""
        screen.say(f"weights: {show(held.cut + held.tables, 'bytes')} in graphs between attentions{once_more}")
    rules, place = Rules(options.api_key, seconds=options.timeout), (options.host, options.port)
    done = run(engine, served, rules, place, options.drain, lambda address: screen.say(f"listening on {address}/v1"))
    if engine.speculator is not None:
        screen.say(engine.speculator.summary())
    return done
