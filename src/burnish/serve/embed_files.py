"""Files of texts to embed, and of their vectors."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from burnish.data.table_file import table_rows, text_of_row
from burnish.data.text import Texts
from burnish.errors import UserError
from burnish.load.source import open_model
from burnish.records import replaced, write_bytes
from burnish.serve.embed import Embedder, Vectors

NPY, JSONL = ".npy", ".jsonl"


def embedder(model: str, device: str) -> Embedder:
    """The encoder that `model` names. Raises UserError as it is read."""
    return Embedder.of(open_model(model), torch.device(device))


def texts_of(file: Path, column: str = "text") -> list[str]:
    """One text a line that is not blank of a .txt file, a row of a .jsonl or .csv file, a document of any other that texts
    are read from.

    Raises UserError naming the file, and line or row, when it cannot be read.
    """
    if file.suffix.lower() in (JSONL, ".csv"):
        return [text_of_row(row, column, where) for where, row in table_rows(file)]
    documents = Texts.open([file], column).documents()
    return [line.strip() for text in documents for line in text.splitlines() if line.strip()]


def check_place(to: Path) -> None:
    """Refuse, before any work, a file that cannot be written or whose ending says no format."""
    if to.suffix not in (NPY, JSONL):
        raise UserError(f"{to}: the ending says the format; {NPY} (an array) and {JSONL} (a line a text) work")
    replaced(to)


def write_vectors(to: Path, texts: Sequence[str], vectors: Vectors) -> None:
    """An array [texts, size] of float32, or a line for each text; whole or not at all."""
    check_place(to)
    if to.suffix == NPY:
        stream = io.BytesIO()
        np.save(stream, vectors)
        write_bytes(to, stream.getvalue())
    else:
        write_bytes(to, "".join(f"{line}\n" for line in lines(texts, vectors)).encode())


def lines(texts: Sequence[str], vectors: Vectors) -> Iterator[str]:
    """One JSON object a text; numbers with as many digits as make them again."""
    for text, vector in zip(texts, vectors, strict=True):
        row: dict[str, Any] = {"text": text, "embedding": [float(str(x)) for x in vector]}
        yield json.dumps(row, ensure_ascii=False)
