"""Session: one test being taken. Answers are added to a new record; nothing is changed in place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from burnish.practice.bank import Bank
from burnish.practice.draw import Posed
from burnish.practice.question import Question
from burnish.records import Frozen

SECONDS = 90  # a question of a timed test


class Answer(Frozen):
    """The place of the chosen option in the bank's order, None where time ran out, and the seconds it took."""

    choice: int | None
    seconds: float


class Session(Frozen):
    """`form` is what was asked for, such as `mixed` or `short zero`; `limit` is in seconds, None when untimed."""

    form: str
    posed: tuple[Posed, ...]
    limit: float | None = None
    answers: tuple[Answer, ...] = ()

    @property
    def current(self) -> Posed | None:
        """The question to be answered, None at the end."""
        return self.posed[len(self.answers)] if len(self.answers) < len(self.posed) else None

    @property
    def left(self) -> float | None:
        """Seconds that remain: only the time from a question to its answer counts, explanations are read for free."""
        return None if self.limit is None else max(0.0, self.limit - sum(answer.seconds for answer in self.answers))


@dataclass(frozen=True)
class Score:
    """Right answers of those asked, and both for each subject that was asked about."""

    right: int
    asked: int
    subjects: dict[str, tuple[int, int]]


def begin(form: str, posed: Sequence[Posed], timed: bool) -> Session:
    """A test of these questions, timed by their number."""
    return Session(form=form, posed=tuple(posed), limit=float(SECONDS * len(posed)) if timed else None)


def answered(session: Session, place: int | None, seconds: float) -> Session:
    """The session after an answer: `place` is that of the letter as shown. None, or too late an answer, ends the test:
    what is left counts as not answered."""
    current = session.current
    assert current is not None
    late = session.left is not None and seconds >= session.left
    if place is None or late:
        rest = len(session.posed) - len(session.answers) - 1
        spent = min(seconds, session.left) if session.left is not None else seconds
        given = (Answer(choice=None, seconds=spent), *(Answer(choice=None, seconds=0.0) for _ in range(rest)))
    else:
        given = (Answer(choice=current.order[place], seconds=seconds),)
    return session.model_copy(update={"answers": session.answers + given})


def still_there(session: Session, bank: Bank) -> bool:
    """Whether the bank still has every question of a session that was kept."""
    return all(bank.find(posed.id) is not None for posed in session.posed)


def question(session: Session, bank: Bank, number: int) -> Question:
    """The question at a place of the session."""
    found = bank.find(session.posed[number].id)
    assert found is not None
    return found


def score(session: Session, bank: Bank) -> Score:
    """What was right so far; at the end also over what was not answered."""
    counts: dict[str, tuple[int, int]] = {}
    for number, answer in enumerate(session.answers):
        asked = question(session, bank, number)
        right, of = counts.get(asked.subject, (0, 0))
        counts[asked.subject] = (right + (answer.choice == asked.answer), of + 1)
    ordered = {name: counts[name] for name in bank.subjects() if name in counts}
    return Score(sum(right for right, _ in counts.values()), len(session.answers), ordered)
