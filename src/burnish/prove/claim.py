"""Verdict: what a claim says, what was expected and measured, and whether it holds here."""

from __future__ import annotations

from burnish.records import Frozen


class Verdict(Frozen):
    """One claim measured on this machine."""

    claim: str
    statement: str
    varied: str
    held: str
    expected: str
    measured: str
    holds: bool
    why: str
    source: str
    code: str
    seconds: float = 0.0
