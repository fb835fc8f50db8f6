"""The speculate verb: parse, call, print. Options are the fields of one record."""

from __future__ import annotations

import json as json_
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from burnish.cli_answers import Options as AnswerOptions
from burnish.cli_answers import answers
from burnish.cli_engine import EngineOptions, check_engine, engine_settings, threads
from burnish.cli_record import verb
from burnish.errors import BudgetNotMet, UserError

if TYPE_CHECKING:
    from burnish.serve.engine import Engine
    from burnish.serve.served import Served

speculate = typer.Typer(help="Whether a draft pays, and what one learns from.", no_args_is_help=True)
STEP = 256  # tokens of a step, more where the rows asked for need them


@dataclass(frozen=True)
class Options(EngineOptions):
    """What `burnish speculate advise` takes."""

    model: Annotated[str, Argument(help="A model folder, a run folder, a .gguf file, or a model's name.")]
    draft: Annotated[str, Option(help="ngram, skip:N, or a small model of the same tokens.")]
    text: Annotated[str, Option(help="What prompts are cut from: a text file or folder, or asset:NAME.")]
    rows: Annotated[str, Option(help="Sequences at once to advise on, such as 1,8.")] = "1,8"
    prompts: Annotated[int, Option(min=1, help="How many prompts.")] = 8
    prompt_tokens: Annotated[int, Option(min=1, help="Tokens of a prompt.")] = 96
    new_tokens: Annotated[int, Option(min=8, help="Tokens to write after each.")] = 48
    temperature: Annotated[float, Option(min=0.0, help="0 takes the likeliest token.")] = 0.0
    top_p: Annotated[float, Option(help="Keep the likeliest tokens up to this probability.")] = 1.0
    seed: Annotated[int, Option(min=0, help="Of what is drawn.")] = 0
    at_least: Annotated[float | None, Option(min=1.0, help="Times as fast; exit code 3 where no rows get it.")] = None
    json: Annotated[bool, Option("--json", help="Print JSON.")] = False


def advise(options: Options) -> None:
    """Measure a draft on your own text: how many guesses stand, what they cost here, whether it pays, what would change it."""
    from burnish.finished import require_torch

    check_engine(options)
    rows = rows_of(options.rows)
    require_torch("burnish speculate advise")
    from burnish.progress import Screen
    from burnish.serve.sampling import Sampling
    from burnish.serve.speculative import advice_text
    from burnish.serve.speculative.trial import trial

    screen = Screen()
    engine, served = _opened(options, rows)
    prompts = _prompts(options, served)
    screen.say(
        f"{served.name}, draft {options.draft}: {type(engine.runner).__name__}, {threads()} threads, {len(prompts)} prompts of "
        f"{options.text}"
    )
    sampling = Sampling(
        max_new_tokens=options.new_tokens,
        temperature=options.temperature,
        top_p=options.top_p,
        seed=options.seed,
        eos=served.ends or None,
    )
    found = trial(engine, prompts, sampling, rows, screen.say)
    record = advice_text.record(found) | {"model": options.model, "draft": options.draft, "text": options.text}
    if options.json:
        print(json_.dumps(record, indent=1))
    else:
        for line in advice_text.lines(found):
            print(line)
    best = max(one.speedup for one in found.advice)
    if options.at_least is not None and best < options.at_least:
        raise BudgetNotMet(f"--at-least {options.at_least:g}: {best:.2f} times as fast is the most that is expected")


def rows_of(text: str) -> list[int]:
    """Numbers of sequences. Raises UserError for what are none."""
    try:
        found = [int(word) for word in text.split(",")]
    except ValueError:
        found = []
    if not found or min(found) < 1 or max(found) > 1024:
        raise UserError(f"--rows {text}: give numbers from 1 to 1024, such as 1,8")
    return found


def _opened(options: Options, rows: list[int]) -> tuple[Engine, Served]:
    from burnish.serve.opening import open_served
    from burnish.serve.speculative.gate import LENGTHS

    most = max(rows)
    step = max(STEP, most * (1 + LENGTHS[-1]))
    settings = engine_settings(options, rows=most, tokens=step, queue=max(most, 256), draft=options.draft)
    engine, served, _ = open_served(options.model, settings)
    return engine, served


def _prompts(options: Options, served: Served) -> list[tuple[int, ...]]:
    from burnish.serve.speculative.prompts import cut

    room = served.room - options.new_tokens
    if options.prompt_tokens > room:
        raise UserError(
            f"--prompt-tokens {options.prompt_tokens}: with --new-tokens {options.new_tokens} the model has room for {room}"
        )
    return cut(options.text, served.prompt_of, options.prompt_tokens, options.prompts)


speculate.command("advise")(verb(advise, Options))
speculate.command("answers")(verb(answers, AnswerOptions))
