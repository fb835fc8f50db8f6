"""Streams: what is printed may meet a full disk, a reader that has left, or an encoding that lacks a letter."""

from __future__ import annotations

import io
import os
import shutil
import signal
import sys
import textwrap
import unicodedata
from collections.abc import Sequence
from contextlib import suppress
from types import FrameType

from burnish.errors import UserError

WIDTH = 100
TURNS = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"  # order the letters behind them the other way round


class Terminated(BaseException):
    """SIGTERM came where nobody waits for it; what holds something half made clears it away on the way out."""


def prepare() -> None:
    """Print letters that standard output cannot hold as a question mark, and turn SIGTERM into `Terminated`."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    signal.signal(signal.SIGTERM, _terminate)


def _terminate(number: int, frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_DFL)  # an impatient second one ends the process at once
    raise Terminated


def check_words(words: Sequence[str]) -> None:
    """Bytes that are no UTF-8 stand in a word of the command line as halves of surrogate pairs. Raises UserError."""
    for word in words:
        try:
            word.encode()
        except UnicodeEncodeError:
            raise UserError(f"argument {word!a}: holds bytes that are no UTF-8 text") from None


def printable(text: str) -> str:
    """A text without what steers a terminal: names come from files and command lines. Line breaks become spaces."""
    line = " ".join(text.splitlines()).replace("\t", " ")
    return "".join(letter for letter in line if unicodedata.category(letter) != "Cc" and letter not in TURNS)


def complain(said: str) -> None:
    """Print on standard error what stopped the command: one line, which a terminal shows cut between words."""
    line = printable(f"burnish: {said}")
    if sys.stderr is not None and sys.stderr.isatty():
        width = min(WIDTH, shutil.get_terminal_size().columns)
        line = textwrap.fill(line, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    print(line, file=sys.stderr)


def flush() -> None:
    """Write out what standard output holds. Raises OSError when it cannot."""
    if sys.stdout is not None:
        sys.stdout.flush()


def silence() -> None:
    """Let standard output lead nowhere, so that what it still holds raises nothing when the process ends."""
    with suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def reader_left(error: BaseException) -> bool:
    """Whether `error` says that a pipe was closed; the libraries that print leave the program when they meet one."""
    return isinstance(error, BrokenPipeError) or isinstance(error.__context__, BrokenPipeError)
