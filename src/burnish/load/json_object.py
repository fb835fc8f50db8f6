"""JSON objects that others wrote: of bounded size and depth, UTF-8, no key twice, nothing that cannot be printed or saved."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NoReturn

from burnish.errors import UserError
from burnish.load.regular_file import text_of

DEEPEST = 64  # objects and lists inside each other; real settings have a handful


def read_object(path: Path, most_bytes: int, expected: str = "a JSON object") -> dict[str, Any]:
    """The content of a JSON file. `expected` says in messages what it should be.

    Raises UserError naming the file, and the key where there is one, for a file that is missing, larger than
    `most_bytes`, no UTF-8, no JSON, no object, nested deeper than DEEPEST, or with a key twice in one object.
    """
    return parse_object(text_of(path, most_bytes), str(path), expected)


def parse_object(text: bytes, where: str, expected: str = "a JSON object") -> dict[str, Any]:
    """The object that `text` spells; `where` names the file. Raises UserError as `read_object` does."""

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(items)
        if len(made) < len(items):
            seen: set[str] = set()
            twice = next(key for key, _ in items if key in seen or seen.add(key))  # type: ignore[func-returns-value]
            raise UserError(f"{where}: the key {twice!a} stands twice in one object; keep one of the two")
        return made

    try:
        value = json.loads(text.decode(), object_pairs_hook=pairs)
    except UserError:
        raise
    except UnicodeDecodeError:
        raise UserError(f"{where}: not readable as JSON (its text is not UTF-8)") from None
    except RecursionError:
        _too_deep(where)
    except ValueError as error:  # numbers of thousands of digits raise the plain kind
        raise UserError(f"{where}: not readable as JSON ({error})") from None
    if not isinstance(value, dict):
        raise UserError(f"{where}: expected {expected}, found {type(value).__name__}")
    _check_inside(value, where)
    return value


def _check_inside(value: dict[str, Any], where: str) -> None:
    """Walk all of it without recursion: depth, and halves of surrogate pairs, which no file or terminal can take."""
    level: list[Any] = [value]
    for _ in range(DEEPEST):
        below: list[Any] = []
        for holder in level:
            texts = [*holder, *holder.values()] if isinstance(holder, dict) else holder
            for text in texts:
                if isinstance(text, str) and not text.isascii():
                    _check_text(text, where)
            below += (part for part in texts if isinstance(part, dict | list))
        if not below:
            return
        level = below
    _too_deep(where)


def _check_text(text: str, where: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UserError(f"{where}: {text[:40]!a} holds half of a surrogate pair, which is no text") from None


def _too_deep(where: str) -> NoReturn:
    raise UserError(f"{where}: nested deeper than {DEEPEST} objects and lists; no model's settings are") from None
