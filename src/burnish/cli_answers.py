"""The answers verb of `burnish speculate`: what a model answers, for a draft to learn from. Options are one record."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from burnish.cli_engine import EngineOptions, check_engine, engine_settings
from burnish.errors import UserError


@dataclass(frozen=True)
class Options(EngineOptions):
    """What `burnish speculate answers` takes."""

    model: Annotated[str, Argument(help="A chat model: a folder, a run folder, a .gguf file, or a model's name.")]
    questions: Annotated[Path, Argument(help="A text file with one question a line.")]
    out: Annotated[Path, Argument(help="The .jsonl file to write.")]
    new_tokens: Annotated[int, Option(min=1, help="Tokens of an answer at most.")] = 128
    rows: Annotated[int, Option(min=1, help="Questions at once.")] = 16


def answers(options: Options) -> None:
    """Write what a model answers to questions, as conversations that `burnish run distill-draft data.train=OUT` learns from."""
    from burnish.finished import require_torch

    check_engine(options)
    questions = read(options.questions)
    if options.out.suffix != ".jsonl":
        raise UserError(f"{options.out}: conversations are kept in a .jsonl file; name one")
    require_torch("burnish speculate answers")
    from burnish.serve.answers import write_answers

    settings = engine_settings(options, rows=options.rows)
    count = write_answers(options.model, questions, options.out, settings, options.new_tokens)
    print(f"{options.out}: {count:,} tokens of {options.model}, asked {len(questions):,} questions")


def read(path: Path) -> list[str]:
    """The lines of a file that are not empty. Raises UserError where there is no such text."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read as text ({getattr(error, 'strerror', None) or error})") from None
    if not (found := [line.strip() for line in lines if line.strip()]):
        raise UserError(f"{path}: holds no question; write one a line")
    return list(dict.fromkeys(found))
