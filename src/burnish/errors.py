"""Errors a person can act on, each with the exit code it ends the command with.

A message is one line: what is wrong, where, and which values work. Anything that is not one of these is an internal error (exit 1).
"""

from __future__ import annotations

import difflib
import signal
from collections.abc import Iterable


class BurnishError(Exception):
    """Base of every expected stop; `exit_code` is what the command line returns."""

    exit_code = 1


class UserError(BurnishError, ValueError):
    """Bad input: a value, a file or a key that cannot be used."""

    exit_code = 2


class MissingExtra(UserError):
    """A verb needs packages that the base install leaves out."""

    def __init__(self, verb: str, extra: str, package: str) -> None:
        super().__init__(
            f"{verb} needs {package}, which is not installed; install it with: pip install 'burnish[{extra}]'"
        )


class BudgetNotMet(BurnishError):
    """The request is well formed, but nothing fits or a stated budget was missed."""

    exit_code = 3


class PartlyDone(BurnishError):
    """Some of the work was done and is kept; the message names the rest."""

    exit_code = 4


class Stopped(BurnishError):
    """A signal asked the run to stop; what is needed to resume was saved."""

    def __init__(self, number: int, message: str) -> None:
        super().__init__(message)
        self.exit_code = 128 + number
        self.signal = signal.Signals(number).name


def nearest(name: str, known: Iterable[str]) -> str:
    """A half sentence for an unknown name: those it is a part of, else the nearest known one, else all of them."""
    options = sorted(known)
    if not options:
        return "none is known"
    within = [option for option in options if name.lower() in option.lower()] if len(name) >= 3 else []
    if 0 < len(within) <= 3:
        return f"did you mean {' or '.join(map(repr, within))}?"
    close = difflib.get_close_matches(name, options, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(options)}"
