"""Labelled texts as rows to train an encoder on: many texts packed into one row, each with its class at its first position.

Legend: S tokens a row.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from burnish.data.batch import IGNORED, Row
from burnish.data.encoder_texts import EncoderText
from burnish.errors import UserError


def labelled_rows(texts: Sequence[EncoderText], classes: Sequence[int], length: int, pad: int = 0) -> list[Row]:
    """Rows of `length` tokens with as many texts as fit, in their order; what is left of a row is pads, a piece of their own
    without a label.

    A batch has no token types, so a pair of texts is learned as one text. Raises UserError for a text that is longer than a
    row or empty.
    """
    rows: list[Row] = []
    held: list[tuple[EncoderText, int]] = []
    used = 0
    for number, (text, label) in enumerate(zip(texts, classes, strict=True)):
        size = len(text.ids)
        if not 1 <= size <= length:
            raise UserError(f"text {number}: {size} tokens, a row holds 1 to {length}; cut it or make rows longer")
        if used + size > length:
            rows.append(_row(held, length, pad))
            held, used = [], 0
        held.append((text, label))
        used += size
    return [*rows, _row(held, length, pad)] if held else rows


def _row(held: Sequence[tuple[EncoderText, int]], length: int, pad: int) -> Row:
    sizes = [len(text.ids) for text, _ in held]
    rest = length - sum(sizes)
    pieces = (*sizes, *((rest,) if rest else ()))
    ids = np.full(length, pad, dtype=np.int64)
    labels = np.full(length, IGNORED, dtype=np.int64)
    starts = np.cumsum([0, *sizes[:-1]])
    ids[: sum(sizes)] = np.concatenate([text.ids for text, _ in held])
    labels[starts] = [label for _, label in held]
    return Row(ids, labels, np.concatenate([np.arange(size) for size in pieces]), pieces)
