"""The embed verb: parse, call, print."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from burnish.errors import UserError


def embed(
    model: Annotated[str, Argument(help="A folder of an encoder, a shipped name (minilm), or ORG/NAME of the hub.")],
    file: Annotated[Path | None, Argument(help="A .txt file (a text a line), .jsonl or .csv (a text a row).")] = None,
    text: Annotated[list[str] | None, Option("--text", help="A text; may be repeated.")] = None,
    to: Annotated[Path | None, Option("--to", help="OUT.npy or OUT.jsonl; default: a JSON line a text.")] = None,
    column: Annotated[str, Option("--column", help="Column of a .jsonl or .csv file that holds the text.")] = "text",
) -> None:
    """Turn texts into vectors with an encoder, as its folder says."""
    from burnish.finished import require_torch
    from burnish.progress import Screen

    if (file is None) == (text is None):
        raise UserError("texts come from one place: a FILE, or --text once or more")
    require_torch("burnish embed")
    from burnish.runnable import pick_device
    from burnish.serve import embed_files

    if to is not None:
        embed_files.check_place(to)
    texts = text if file is None else embed_files.texts_of(file, column)
    assert texts is not None
    device, why = pick_device("auto")
    made, screen = embed_files.embedder(model, device), Screen()
    screen.say(f"{model} on {device} ({why}): {made.pooling}")
    with screen.task("embed texts") as watch:
        vectors = made.embed(texts, progress=lambda done: watch(done, len(texts)))
    if to is None:
        for line in embed_files.lines(texts, vectors):
            print(line)
    else:
        embed_files.write_vectors(to, texts, vectors)
        screen.say(f"{to}: {vectors.shape[0]} vectors of {vectors.shape[1]} numbers")
