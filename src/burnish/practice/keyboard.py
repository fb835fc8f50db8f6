"""Keyboard: single keys from a terminal, first letters of lines from anything else."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO

END = "end"  # nobody types any more
ENTER = "enter"
ESCAPE = 0.02  # seconds in which the rest of a key of several bytes comes
Read = Callable[[float | None], str | None]


@contextmanager
def keys(stream: IO[str]) -> Iterator[Read]:
    """A function that waits at most so many seconds for a key (None: for ever) and gives it in lower case, ENTER, END, or
    None when the time is up. Ctrl-C still interrupts. The terminal is left as it was."""
    try:
        import termios
        import tty
    except ImportError:  # not on Windows: there keys are followed by Enter
        yield lambda seconds: _line(stream)
        return
    if not stream.isatty():
        yield lambda seconds: _line(stream)
        return
    number = stream.fileno()
    before = termios.tcgetattr(number)
    try:
        tty.setcbreak(number, termios.TCSANOW)
        yield lambda seconds: _key(number, seconds)
    finally:
        termios.tcsetattr(number, termios.TCSANOW, before)


def _line(stream: IO[str]) -> str:
    line = stream.readline()
    return END if not line else line.strip()[:1].lower() or ENTER


def _key(number: int, seconds: float | None) -> str | None:
    import select

    if not select.select([number], [], [], seconds)[0]:
        return None
    read = os.read(number, 1)
    if not read or read == b"\x04":
        return END
    if read == b"\x1b":  # an arrow or a function key: none of ours, with all that belongs to it
        byte = read
        while select.select([number], [], [], ESCAPE)[0] and (byte := os.read(number, 1)):
            if byte not in b"[O" and b"@" <= byte <= b"~":  # the last byte of such a sequence
                break
        return ""
    return ENTER if read in b"\r\n " else read.decode("ascii", "ignore").lower()


def typed(stream: IO[str]) -> bool:
    """Whether a person types there and reads what is printed."""
    return stream.isatty() and sys.stdout.isatty()
