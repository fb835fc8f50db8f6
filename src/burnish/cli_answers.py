"""The answers verb of `burnish speculate`: what a model answers, for a draft to learn from. Options are one record."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from burnish.cli_serve import bytes_of, check_choices, threads
from burnish.errors import UserError


@dataclass(frozen=True)
class Options:
    """What `burnish speculate answers` takes."""

    model: Annotated[str, Argument(help="A chat model: a folder, a run folder, a .gguf file, or a model's name.")]
    questions: Annotated[Path, Argument(help="A text file with one question a line.")]
    out: Annotated[Path, Argument(help="The .jsonl file to write.")]
    new_tokens: Annotated[int, Option(min=1, help="Tokens of an answer at most.")] = 128
    rows: Annotated[int, Option(min=1, help="Questions at once.")] = 16
    memory: Annotated[str, Option(help="For keys, values and steps, beside the weights: 512MiB, 4GiB.")] = "1GiB"
    runner: Annotated[str, Option(help="auto, torch or onnxruntime.")] = "auto"
    weights: Annotated[str, Option(help="float as they are, or q4: blocks of 4 bits.")] = "float"


def answers(options: Options) -> None:
    """Write what a model answers to questions, as conversations that `burnish run distill-draft data.train=OUT` learns from."""
    from burnish.finished import require_torch

    check_choices(vars(options))
    memory, questions = bytes_of(options.memory), read(options.questions)
    if options.out.suffix != ".jsonl":
        raise UserError(f"{options.out}: conversations are kept in a .jsonl file; name one")
    require_torch("burnish speculate answers")
    from burnish.serve.answers import write_answers
    from burnish.serve.opening import Settings

    settings = Settings(
        memory,
        rows=options.rows,
        runner=options.runner,  # type: ignore[arg-type]
        weights=options.weights,  # type: ignore[arg-type]
        threads=threads(),
    )
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
