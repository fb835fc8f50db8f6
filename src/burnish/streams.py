"""Streams: what is printed may meet a full disk, a reader that has left, or an encoding that lacks a letter."""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from types import FrameType

from burnish.errors import UserError


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
