"""Progress: what a person has got wrong, left half done and finished, in one file of their own."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from pydantic import Field, ValidationError

from burnish.errors import UserError
from burnish.practice.bank import Bank
from burnish.practice.session import Session, question, score, still_there
from burnish.records import Frozen, save


class Finished(Frozen):
    """A test that was taken to its end."""

    ended: str
    form: str
    right: int
    asked: int
    seconds: float


class Kept(Frozen):
    """Of one bank: questions last answered wrong, tests half done by their form, and tests that are done."""

    wrong: tuple[str, ...] = ()
    open: dict[str, Session] = Field(default={})
    finished: tuple[Finished, ...] = ()


class Progress(Frozen):
    """Of all banks, by their names."""

    version: int = 1
    banks: dict[str, Kept] = Field(default={})

    def of(self, bank: Bank) -> Kept:
        """What is kept of a bank."""
        return self.banks.get(bank.name, Kept())


def place(environment: Mapping[str, str]) -> Path:
    """The file: $XDG_STATE_HOME/burnish/practice.json, else ~/.local/state/burnish/practice.json."""
    base = environment.get("XDG_STATE_HOME")
    root = Path(base) if base and Path(base).is_absolute() else Path.home() / ".local" / "state"
    return root / "burnish" / "practice.json"


def load(path: Path) -> tuple[Progress, str | None]:
    """What was kept, and one line where the file was damaged: it is set aside under a name of its own, never removed."""
    try:
        return Progress.model_validate_json(path.read_bytes()), None
    except FileNotFoundError:
        return Progress(), None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error}); see to its permissions") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the whole"
        aside = _set_aside(path)
        return Progress(), f"{path}: damaged ({where}: {first['msg']}); set aside as {aside.name}, beginning anew"


def _set_aside(path: Path) -> Path:
    """Move a file to the first free name beside it."""
    number = 1
    while (aside := path.with_name(f"{path.name}.damaged-{number}")).exists():
        number += 1
    os.replace(path, aside)
    return aside


def unfinished(kept: Kept, form: str, bank: Bank) -> Session | None:
    """The half-done test of a form, unless the bank has changed under it."""
    session = kept.open.get(form)
    return session if session is not None and session.current is not None and still_there(session, bank) else None


def record(path: Path, bank: Bank, session: Session, new: int) -> str | None:
    """Write down a session whose last `new` answers are not yet in the file, which is read again first: another test may
    be going on beside this one. Gives the line of `load`; raises UserError where it cannot be written."""
    progress, damage = load(path)
    kept = progress.of(bank)
    wrong = dict.fromkeys(kept.wrong)
    for number in range(len(session.answers) - new, len(session.answers)):
        asked = question(session, bank, number)
        wrong.pop(asked.id, None)
        if session.answers[number].choice != asked.answer:
            wrong[asked.id] = None
    unfinished = {form: other for form, other in kept.open.items() if form != session.form}
    finished = kept.finished
    if session.current is None:
        finished += (_finished(session, bank),)
    else:
        unfinished[session.form] = session
    changed = Kept(wrong=tuple(wrong), open=unfinished, finished=finished)
    save(progress.model_copy(update={"banks": progress.banks | {bank.name: changed}}), path)
    return damage


def _finished(session: Session, bank: Bank) -> Finished:
    found = score(session, bank)
    seconds = sum(answer.seconds for answer in session.answers)
    ended = datetime.now(UTC).isoformat(timespec="seconds")
    return Finished(ended=ended, form=session.form, right=found.right, asked=found.asked, seconds=round(seconds, 1))
