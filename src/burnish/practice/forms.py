"""Forms: what a person asks for by name, and the test that it becomes: one half done, or a new one."""

from __future__ import annotations

import secrets
import shlex
from dataclasses import dataclass
from pathlib import Path

from burnish.errors import UserError
from burnish.practice import draw
from burnish.practice.bank import Bank
from burnish.practice.progress import Kept, unfinished
from burnish.practice.session import Session, begin


@dataclass(frozen=True)
class Asked:
    """How a test is wanted; `bank` is the file of one's own questions, for the command that goes on."""

    seed: int | None = None
    timed: bool = False
    fresh: bool = False
    bank: Path | None = None


def given(subject: str | None, full: int | None, *, mixed: bool, labs: bool, wrong: bool) -> list[str]:
    """The forms named on a command line: `short SUBJECT`, `full N`, `mixed`, `labs`, `wrong`."""
    found = [f"short {subject}"] if subject is not None else []
    found += [f"full {full}"] if full is not None else []
    return found + [name for name, wanted in (("mixed", mixed), ("labs", labs), ("wrong", wrong)) if wanted]


def session(bank: Bank, kept: Kept, form: str, asked: Asked) -> Session:
    """The test of a form: the half-done one goes on unless `fresh`, or a seed, asks for a new one. Raises UserError."""
    half = unfinished(kept, form, bank)
    if half is not None and not asked.fresh and asked.seed is None:
        return half
    seed = secrets.randbelow(2**31) if asked.seed is None else asked.seed
    return begin(form, posed(bank, kept, form, seed), asked.timed)


def posed(bank: Bank, kept: Kept, form: str, seed: int) -> tuple[draw.Posed, ...]:
    """The questions of a form. Raises UserError where there are none."""
    kind, _, which = form.partition(" ")
    if kind == "short":
        return draw.short(bank, which, seed)
    if kind == "full":
        return draw.full(bank, int(which), seed)
    if kind == "mixed":
        return draw.mixed(bank, seed)
    found = draw.again(bank, kept.wrong, seed)
    if not found:
        raise UserError("--wrong: nothing was answered wrong so far; use --mixed or --subject")
    return found


def words(form: str) -> list[str]:
    """The options that ask for a form."""
    kind, _, which = form.partition(" ")
    return {"short": ["--subject", which], "full": ["--full", which]}.get(kind, [f"--{kind}"])


def command(form: str, asked: Asked) -> str:
    """The command that goes on with a test."""
    bank = ["--bank", str(asked.bank)] if asked.bank else []
    return shlex.join(["burnish", "practice", *words(form), *bank])
