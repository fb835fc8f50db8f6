"""The serve verb: parse, call, print. Options are the fields of one record."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from typer import Argument, Option

from burnish.errors import MissingExtra, PartlyDone, UserError

SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(B|KiB|MiB|GiB|TiB|KB|MB|GB|TB)?", re.IGNORECASE)
LEAST = 2**20  # bytes that may be given without a unit
UNITS = {
    "b": 1,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
}
CHOICES = {"runner": ("auto", "torch", "onnxruntime"), "weights": ("float", "q4")}


@dataclass(frozen=True)
class Options:
    """What `burnish serve` takes."""

    model: Annotated[str, Argument(help="A model folder, a run folder, a .gguf file, or a model's name.")]
    host: Annotated[str, Option(help="Address to listen on.")] = "127.0.0.1"
    port: Annotated[int, Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8000
    memory: Annotated[str, Option(help="For keys, values and steps, beside the weights: 512MiB, 4GiB.")] = "1GiB"
    rows: Annotated[int, Option(min=1, help="Sequences that run at once.")] = 16
    step_tokens: Annotated[int, Option(min=1, help="Tokens of one step.")] = 256
    page: Annotated[int, Option(min=1, help="Positions of a page.")] = 16
    queue: Annotated[int, Option(min=1, help="Requests that may wait.")] = 256
    runner: Annotated[str, Option(help="auto, torch or onnxruntime.")] = "auto"
    weights: Annotated[str, Option(help="float as they are, or q4: blocks of 4 bits.")] = "float"
    exact: Annotated[bool, Option(help="The same last digits in any company, for some of the speed.")] = False
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

    check_choices(vars(options))
    if options.api_key == "":
        raise UserError("--api-key: it is empty; give one, or leave the option out")
    memory = bytes_of(options.memory)
    if options.allocator is not None:
        choose(options.allocator, os.environ)
    require_torch("burnish serve")
    try:
        import prometheus_client  # noqa: F401
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise MissingExtra("burnish serve", "serve", error.name or "starlette") from None
    if not _run(options, memory):
        raise PartlyDone("some requests were cut off: they took longer than --drain allows")


def _run(options: Options, memory: int) -> bool:
    import torch

    from burnish.progress import Screen
    from burnish.serve.allocator import check
    from burnish.serve.http.app import Rules
    from burnish.serve.http.start import run
    from burnish.serve.opening import Settings, open_served
    from burnish.units import show

    if options.allocator is not None and torch.cuda.is_available():
        check(options.allocator, torch.cuda.get_allocator_backend())
    screen, given = Screen(), vars(options)
    chosen: dict[str, Any] = {
        key: given[key] for key in ("page", "rows", "queue", "runner", "weights", "name", "exact", "draft")
    }
    engine, served, size = open_served(
        options.model, Settings(memory, tokens=options.step_tokens, threads=threads(), **chosen)
    )
    screen.say(
        f"{served.name}: {type(engine.runner).__name__}, {size.pages:,} pages of {size.page} positions in "
        f"{show(size.pool_bytes, 'bytes')}, at most {show(size.step_bytes, 'bytes')} a step (predicted)"
    )
    rules, place = Rules(options.api_key, seconds=options.timeout), (options.host, options.port)
    done = run(engine, served, rules, place, options.drain, lambda address: screen.say(f"listening on {address}/v1"))
    if engine.speculator is not None:
        screen.say(engine.speculator.summary())
    return done


def threads() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def check_choices(given: Mapping[str, Any]) -> None:
    """Raises UserError for an option that has a value it cannot have."""
    for key, legal in CHOICES.items():
        if given[key] not in legal:
            raise UserError(f"--{key} {given[key]}: use {' or '.join(legal)}")


def bytes_of(text: str) -> int:
    """A size such as 512MiB. Raises UserError for what is none, and for a number so small that its unit was forgotten."""
    found = SIZE.fullmatch(text.strip())
    if found is None or (size := int(float(found[1]) * UNITS[(found[2] or "B").lower()])) < (1 if found[2] else LEAST):
        raise UserError(f"--memory {text}: a size is a number and a unit, such as 512MiB or 4GiB")
    return size
