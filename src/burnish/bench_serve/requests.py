"""The requests of one load: made from a seed, or read from a trace; the same again for the same options."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from burnish.bench_serve.lengths import Lengths
from burnish.errors import UserError


@dataclass(frozen=True)
class Planned:
    """One request: due `at` seconds after the first, a prompt as text or token ids, and `new` tokens asked for."""

    at: float
    prompt: str | tuple[int, ...]
    new: int

    @property
    def most(self) -> int | None:
        """Positions it takes at most, where the prompt is token ids."""
        return None if isinstance(self.prompt, str) else len(self.prompt) + self.new


def made(
    count: int, rate: float | None, prompts: Lengths, new: Lengths, seed: int, *, below: int = 256, shared: int = 0
) -> tuple[Planned, ...]:
    """`count` requests that arrive as a Poisson process of `rate` a second, or all at once without one.

    Prompts are token ids drawn below `below`; the first `shared` of each are the same. Arrivals, lengths and tokens are drawn
    from streams of their own, so that another rate changes no prompt.
    """
    arrivals, sizes, words = (Random(f"{seed}/{name}") for name in ("arrivals", "lengths", "tokens"))
    beginning = tuple(words.randrange(below) for _ in range(shared))
    found, at = [], 0.0
    for number in range(count):
        if rate is not None and number:
            at += arrivals.expovariate(rate)
        size, asked = prompts(sizes), new(sizes)
        own = tuple(words.randrange(below) for _ in range(max(0, size - shared)))
        found.append(Planned(at, (beginning + own)[:size], asked))
    return tuple(found)


def trace(file: Path, seed: int, below: int = 256) -> tuple[Planned, ...]:
    """Requests of a file, a JSON object a line: `at` (seconds, default 0), `prompt` (text) or `prompt_tokens` (how many, drawn),
    `new_tokens`. Raises UserError naming the line."""
    words = Random(f"{seed}/tokens")
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--trace {file}: cannot be read ({getattr(error, 'strerror', None) or error})") from None
    found = [_planned(line, f"--trace {file}:{number}", words, below) for number, line in _numbered(lines)]
    if not found:
        raise UserError(f"--trace {file}: has no requests; write one JSON object a line")
    first = min(one.at for one in found)
    return tuple(Planned(one.at - first, one.prompt, one.new) for one in sorted(found, key=lambda one: one.at))


def _numbered(lines: Iterable[str]) -> Iterable[tuple[int, str]]:
    return ((number, line) for number, line in enumerate(lines, 1) if line.strip())


def _planned(line: str, where: str, words: Random, below: int) -> Planned:
    try:
        row = json.loads(line)
    except ValueError:
        raise UserError(f"{where}: is not JSON") from None
    known = {"at", "prompt", "prompt_tokens", "new_tokens"}
    if not isinstance(row, dict) or (extra := sorted(row.keys() - known)):
        said = f"has {extra[0]!r}" if isinstance(row, dict) else "is no object"
        raise UserError(f"{where}: {said}; its keys are {', '.join(sorted(known))}")
    at, text, size, new = row.get("at", 0), row.get("prompt"), row.get("prompt_tokens"), row.get("new_tokens")
    if isinstance(at, bool) or not isinstance(at, (int, float)) or not 0 <= at < float("inf"):
        raise UserError(f"{where}: at {at!r}: a number of seconds, 0 or more")
    if (text is None) == (size is None):
        raise UserError(f"{where}: give either prompt, a text, or prompt_tokens, a number")
    if text is not None and (not isinstance(text, str) or not text):
        raise UserError(f"{where}: prompt {text!r}: a text that is not empty")
    for name, value in (("prompt_tokens", 1 if size is None else size), ("new_tokens", new)):
        _check_count(value, f"{where}: {name}")
    prompt = text if isinstance(text, str) else tuple(words.randrange(below) for _ in range(size or 0))
    return Planned(float(at), prompt, int(new or 0))


def _check_count(value: Any, where: str) -> None:
    if type(value) is not int or value < 1:
        raise UserError(f"{where} {value!r}: a whole number, 1 or more")
