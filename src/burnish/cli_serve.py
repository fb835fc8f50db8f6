"""The serve verb: parse, call, print."""

from __future__ import annotations

import os
import re
from typing import Annotated

import typer

from burnish.errors import MissingExtra, PartlyDone, UserError

SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(B|KiB|MiB|GiB|TiB|KB|MB|GB|TB)?", re.IGNORECASE)
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


def serve(
    model: Annotated[str, typer.Argument(help="A model folder, a run folder, a .gguf file, or a model's name.")],
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Port; 0 takes a free one.")] = 8000,
    memory: Annotated[
        str, typer.Option("--memory", help="For keys, values and steps, beside the weights: 512MiB, 4GiB.")
    ] = "1GiB",
    rows: Annotated[int, typer.Option("--rows", min=1, help="Sequences that run at once.")] = 16,
    step_tokens: Annotated[int, typer.Option("--step-tokens", min=1, help="Tokens of one step.")] = 256,
    page: Annotated[int, typer.Option("--page", min=1, help="Positions of a page.")] = 16,
    queue: Annotated[int, typer.Option("--queue", min=1, help="Requests that may wait.")] = 256,
    runner: Annotated[str, typer.Option("--runner", help="auto, torch or onnxruntime.")] = "auto",
    weights: Annotated[str, typer.Option("--weights", help="float as they are, or q4: blocks of 4 bits.")] = "float",
    name: Annotated[str | None, typer.Option("--name", help="What clients call the model.")] = None,
    key: Annotated[
        str | None, typer.Option("--api-key", envvar="BURNISH_API_KEY", help="Clients must send it.")
    ] = None,
    seconds: Annotated[float | None, typer.Option("--timeout", min=0.001, help="Longest time of a request.")] = None,
    drain: Annotated[int, typer.Option("--drain", min=0, help="Seconds to finish what runs at the end.")] = 30,
) -> None:
    """Serve a model over HTTP, as clients of OpenAI's API expect it."""
    from burnish.finished import require_torch

    require_torch("burnish serve")
    try:
        import prometheus_client  # noqa: F401
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise MissingExtra("burnish serve", "serve", error.name or "starlette") from None
    from burnish.progress import Screen
    from burnish.serve.http.app import Rules
    from burnish.serve.http.start import run
    from burnish.serve.opening import Settings, open_served
    from burnish.units import show

    if runner not in ("auto", "torch", "onnxruntime"):
        raise UserError(f"--runner {runner}: use auto, torch or onnxruntime")
    if weights not in ("float", "q4"):
        raise UserError(f"--weights {weights}: use float or q4")
    if key == "":
        raise UserError("--api-key: it is empty; give one, or leave the option out")
    screen, threads = (
        Screen(),
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
    )
    settings = Settings(bytes_of(memory), page, rows, step_tokens, queue, runner, weights, threads, name)  # type: ignore[arg-type]
    engine, served, size = open_served(model, settings)
    screen.say(
        f"{served.name}: {type(engine.runner).__name__}, {size.pages:,} pages of {size.page} positions in "
        f"{show(size.pool_bytes, 'bytes')}, at most {show(size.step_bytes, 'bytes')} a step (predicted)"
    )

    def ready(address: str) -> None:
        screen.say(f"listening on {address}/v1")

    if not run(engine, served, Rules(key=key, seconds=seconds), (host, port), drain, ready):
        raise PartlyDone("some requests were cut off: they took longer than --drain allows")


def bytes_of(text: str) -> int:
    """A size such as 512MiB. Raises UserError for what is none."""
    found = SIZE.fullmatch(text.strip())
    if found is None or (size := int(float(found[1]) * UNITS[(found[2] or "B").lower()])) < 1:
        raise UserError(f"--memory {text}: a size is a number and a unit, such as 512MiB or 4GiB")
    return size
