"""The practice verb: parse, call, print. Options are the fields of one record."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from burnish.errors import UserError

if TYPE_CHECKING:
    from burnish.practice.bank import Bank
    from burnish.practice.forms import Asked


@dataclass(frozen=True)
class Options:
    """What `burnish practice` takes."""

    subject: Annotated[str | None, Option(help="A short set on one subject: zero, fp8, awq, mapping, ...")] = None
    mixed: Annotated[bool, Option("--mixed", help="A mixed test of 12 questions.")] = False
    full: Annotated[int | None, Option(help="Full-length test 1 or 2, of 50 questions.")] = None
    labs: Annotated[bool, Option("--labs", help="Measure the claims on this machine.")] = False
    wrong: Annotated[bool, Option("--wrong", help="Once more what was answered wrong.")] = False
    web: Annotated[bool, Option("--web", help="As a page of this machine, for a browser.")] = False
    timed: Annotated[bool, Option("--timed", help="90 seconds a question, counted over the test.")] = False
    fresh: Annotated[bool, Option("--fresh", help="Begin anew what was left half done.")] = False
    bank: Annotated[Path | None, Option(help="Questions of your own, a YAML file.")] = None
    seed: Annotated[int | None, Option(min=0, help="Order of questions and options; default: by chance.")] = None
    port: Annotated[int, Option(min=0, max=65535, help="Port of the page; 0 takes a free one.")] = 0


def practice(options: Options) -> None:
    """Questions about thirteen decisions, each explained at once; S shows the claim behind it, measured here."""
    from burnish.practice import bank, forms, progress
    from burnish.streams import printable

    given = forms.given(options.subject, options.full, mixed=options.mixed, labs=options.labs, wrong=options.wrong)
    said = [" ".join(forms.words(form)) for form in given]
    if options.web and said:
        raise UserError(f"--web: the page has a menu; leave {' and '.join(said)} out")
    if len(said) > 1:
        raise UserError(f"{', '.join(said)}: give one of them")
    questions = bank.shipped() if options.bank is None else bank.read(options.bank)
    path = progress.place(os.environ)
    _, damage = progress.load(path)
    if damage:
        print(printable(damage), file=sys.stderr)
    asked = forms.Asked(seed=options.seed, timed=options.timed, fresh=options.fresh, bank=options.bank)
    if options.web:
        from burnish.practice import web

        web.serve(questions, path, asked, options.port, lambda line: print(printable(line), flush=True))
    else:
        _at_terminal(questions, path, asked, given[0] if given else None)


def _at_terminal(questions: Bank, path: Path, asked: Asked, form: str | None) -> None:
    from burnish.practice import forms, menu, progress
    from burnish.practice.keyboard import keys, typed
    from burnish.practice.terminal import Desk, take
    from burnish.streams import printable

    columns = shutil.get_terminal_size((80, 24)).columns
    with keys(sys.stdin) as read:
        desk = Desk(questions, path, read, sys.stdout, columns, typed(sys.stdin), printable)
        chosen = form or menu.form(desk, len(progress.load(path)[0].of(questions).wrong))
        if chosen == "labs":
            menu.labs(desk)
        elif chosen is not None:
            kept = progress.load(path)[0].of(questions)
            session = forms.session(questions, kept, chosen, asked)
            take(desk, session, forms.command(chosen, asked))
