"""The bench verb: parse, call, print. Options are the fields of one record."""

from __future__ import annotations

import json as json_
import shlex
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from burnish.cli_record import verb
from burnish.errors import BurnishError, PartlyDone, UserError

if TYPE_CHECKING:
    from burnish.bench_serve.requests import Planned

bench = typer.Typer(help="Measure a server.", no_args_is_help=True)


@dataclass(frozen=True)
class Options:
    """What `burnish bench serve` takes."""

    model: Annotated[str | None, Argument(help="A model to serve for the time of the load; or give --url.")] = None
    url: Annotated[str | None, Option(help="A server that runs, up to /v1: http://127.0.0.1:8000/v1.")] = None
    serve: Annotated[str, Option(help="Options of `burnish serve` for MODEL, as one text.")] = ""
    api_key: Annotated[str | None, Option(envvar="BURNISH_API_KEY", help="Key that the server asks for.")] = None
    name: Annotated[str | None, Option(help="Which of the server's models; default: the first.")] = None
    requests: Annotated[int, Option(min=1, help="How many.")] = 100
    rate: Annotated[float | None, Option(min=1e-6, help="Arrivals a second, at random; default: all at once.")] = None
    prompt_lengths: Annotated[str, Option(help="128, 32-256, 16,64,512 or exponential:200 tokens.")] = "32-256"
    new_lengths: Annotated[str, Option(help="The same, for new tokens.")] = "16-64"
    shared: Annotated[int, Option(min=0, help="First tokens that all prompts have in common.")] = 0
    vocab: Annotated[int, Option(min=1, help="Prompts are drawn from the token ids below this.")] = 256
    trace: Annotated[
        Path | None, Option(help="Requests of a file instead: at, prompt or prompt_tokens, new_tokens.")
    ] = None
    seed: Annotated[int, Option(min=0, help="Of arrivals, lengths and tokens.")] = 0
    concurrency: Annotated[int | None, Option(min=1, help="Most requests at once; default: all that are due.")] = None
    temperature: Annotated[float, Option(min=0.0, help="0 takes the likeliest token.")] = 0.0
    ignore_eos: Annotated[bool, Option("--ignore-eos", help="Let every answer have all its tokens.")] = False
    timeout: Annotated[float, Option(min=0.001, help="Longest time of a request, in seconds.")] = 600.0
    json: Annotated[bool, Option("--json", help="Print JSON.")] = False


def bench_serve(options: Options) -> None:
    """Send a server requests made from a seed; print throughput, latencies and failures."""
    from burnish.bench_serve import text
    from burnish.bench_serve.client import Server
    from burnish.bench_serve.load import Sent, run
    from burnish.bench_serve.own_server import own_server
    from burnish.progress import Screen
    from burnish.streams import printable

    if (options.model is None) == (options.url is None):
        raise UserError("bench serve: name a model to serve, or give --url of a server that runs, one of them")
    if options.url is not None and options.serve:
        raise UserError("--serve: has options for a server of MODEL; the one at --url runs already")
    planned = _planned(options)
    fields = {"temperature": options.temperature} | ({"ignore_eos": True} if options.ignore_eos else {})
    with ExitStack() as stack:
        given = shlex.split(options.serve)
        url = options.url or stack.enter_context(own_server(str(options.model), given, options.api_key))
        watch = stack.enter_context(Screen().task("answers"))
        sent = Sent(options.concurrency, options.name, tuple(fields.items()))
        result = run(Server(url, options.api_key, options.timeout), planned, sent, watch)
    if options.json:
        print(json_.dumps(result.record() | {"seed": options.seed}, indent=1))
    else:
        for line in text.lines(result):
            print(printable(line))
    if failed := result.requests - result.answered:
        kinds = ", ".join(f"{kind}: {count:,}" for kind, count in result.failures.items())
        if result.answered:
            raise PartlyDone(f"{failed:,} of {result.requests:,} requests failed ({kinds})")
        raise BurnishError(f"no request was answered ({kinds})")


def _planned(options: Options) -> tuple[Planned, ...]:
    from burnish.bench_serve import requests
    from burnish.bench_serve.lengths import lengths

    if options.trace is not None:
        return requests.trace(options.trace, options.seed, options.vocab)
    return requests.made(
        options.requests,
        options.rate,
        lengths(options.prompt_lengths, "--prompt-lengths"),
        lengths(options.new_lengths, "--new-lengths"),
        options.seed,
        below=options.vocab,
        shared=options.shared,
    )


bench.callback()(lambda: None)  # so that `serve` stays a word of its own while it is the only one
bench.command("serve")(verb(bench_serve, Options))
