"""Prompts cut from texts: evenly spread over all that was given."""

from __future__ import annotations

from collections.abc import Callable

from burnish.data.text import Texts
from burnish.errors import UserError

MOST = 2**20  # letters of all texts that are looked at
SHARE = 4  # letters of a token, at least nearly always: more are cut away at once


def cut(source: str, encode: Callable[[str], tuple[int, ...]], tokens: int, count: int) -> list[tuple[int, ...]]:
    """At most `count` prompts of `tokens` tokens, or of a whole text where it is shorter.

    Raises UserError as `Texts.open` does, and for texts without a token.
    """
    documents, letters = [], 0
    for document in Texts.open([source]).documents():
        documents.append(document[: MOST - letters])
        letters += len(documents[-1])
        if letters >= MOST:
            break
    size = SHARE * 2 * tokens
    places = [(text, start) for text in documents for start in range(0, max(len(text) - size // 2, 1), size)]
    chosen = [places[number * len(places) // count] for number in range(min(count, len(places)))]
    if len(places) > count:
        chosen = [places[(2 * number + 1) * len(places) // (2 * count)] for number in range(count)]
    found = [encode(text[start : start + size])[:tokens] for text, start in chosen]
    if not (found := [prompt for prompt in found if prompt]):
        raise UserError(f"--text {source}: no text has a token")
    return found
