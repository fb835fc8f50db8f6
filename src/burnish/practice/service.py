"""Service: the test that a page is about, what the page may ask of it, and its state as plain data."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from burnish import prove
from burnish.errors import UserError
from burnish.practice import draw, forms, live, progress
from burnish.practice.bank import Bank, claims
from burnish.practice.feedback import feedback, options
from burnish.practice.question import LETTERS
from burnish.practice.session import Session, answered, question, score
from burnish.practice.terminal import title

EARLY = 1.0  # seconds by which a browser's clock may run ahead of this one


@dataclass(frozen=True)
class Now:
    """Where things stand. `read` says that the last answer's explanation has been left behind; `posed` is when the
    current question was first seen."""

    session: Session | None = None
    read: bool = True
    posed: float = 0.0
    note: str = ""
    measurement: live.Measurement | None = None
    shown: live.Shown | None = None


class Service:
    """One person's practice. Requests come from several threads, one at a time is let in."""

    def __init__(self, bank: Bank, path: Path, asked: forms.Asked) -> None:
        self.bank, self.path, self.asked = bank, path, asked
        self.now = Now()
        self.lock = threading.Lock()
        self.calls: Mapping[str, Callable[[Mapping[str, Any]], None]] = {
            "start": self._start,
            "answer": self._answer,
            "next": self._next,
            "leave": self._leave,
            "measure": self._measure,
            "stop": self._stop,
        }

    def call(self, name: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Do what a page asks for, and give the new state. Raises UserError with what was wrong, KeyError for no such call."""
        act = self.calls[name]
        with self.lock:
            act(body)
            return self._state()

    def state(self) -> dict[str, Any]:
        """The state as it is."""
        with self.lock:
            return self._state()

    def close(self) -> None:
        """Stop what is being measured."""
        with self.lock:
            self._stop({})

    def _start(self, body: Mapping[str, Any]) -> None:
        form = body.get("form")
        if not isinstance(form, str) or form not in self._forms():
            raise UserError(f"form {form!r}: there are {', '.join(self._forms())}")
        asked = replace(self.asked, timed=bool(body.get("timed")), fresh=bool(body.get("fresh")))
        session = forms.session(self.bank, self._kept(), form, asked)
        done = len(session.answers)
        note = f"Going on after question {done} of {len(session.posed)}." if done else ""
        self._stop({})
        self.now = Now(session=session, posed=time.monotonic(), note=note)
        self._keep(session, 0)

    def _forms(self) -> list[str]:
        tests = [f"full {test}" for test in draw.TESTS]
        return ["mixed", *tests, "wrong", *(f"short {name}" for name in self.bank.subjects())]

    def _answer(self, body: Mapping[str, Any]) -> None:
        session, place = self.now.session, body.get("place")
        if session is None or not self.now.read or body.get("number") != len(session.answers):
            return  # another window was faster; this one gets the new state
        seconds = time.monotonic() - self.now.posed
        if place is None:
            if session.left is None or seconds < session.left - EARLY:
                raise UserError("place: there is time left; answer with 0 to 3")
            seconds = max(seconds, session.left)
        elif type(place) is not int or not 0 <= place < len(LETTERS):
            raise UserError(f"place {place!r}: answer with 0 to 3")
        changed = answered(session, place, seconds)
        self.now = replace(self.now, session=changed, read=False, note="", shown=None)
        self._keep(changed, len(changed.answers) - len(session.answers))

    def _next(self, body: Mapping[str, Any]) -> None:
        if not self.now.read:
            self._stop({})
            self.now = replace(self.now, read=True, posed=time.monotonic(), shown=None, note="")

    def _leave(self, body: Mapping[str, Any]) -> None:
        self._stop({})
        self.now = Now()

    def _measure(self, body: Mapping[str, Any]) -> None:
        claim = body.get("claim")
        if not isinstance(claim, str) or claim not in claims():
            raise UserError(f"claim {claim!r}: there are {', '.join(claims())}")
        self._stop({})
        if said := live.absent(claim):
            self.now = replace(self.now, shown=live.Shown(claim, None, said))
        else:
            self.now = replace(self.now, measurement=live.start(claim), shown=None)

    def _stop(self, body: Mapping[str, Any]) -> None:
        if self.now.measurement is not None:
            live.stop(self.now.measurement)
            self.now = replace(self.now, measurement=None)

    def _keep(self, session: Session, new: int) -> None:
        try:
            damage = progress.record(self.path, self.bank, session, new)
        except UserError as error:
            damage = f"Not saved: {error}"
        if damage:
            self.now = replace(self.now, note=damage)

    def _kept(self) -> progress.Kept:
        found, damage = progress.load(self.path)
        if damage:
            self.now = replace(self.now, note=damage)
        return found.of(self.bank)

    def _state(self) -> dict[str, Any]:
        measurement = self.now.measurement
        if measurement is not None and not measurement.running:
            self.now = replace(self.now, measurement=None, shown=live.result(measurement))
        session = self.now.session
        view = "menu" if session is None else self._view(session)
        found = (self._menu() if session is None else {}) | {"view": view, "measured": self._measured()}
        found["note"] = self.now.note
        if session is None:
            return found
        found |= {"title": title(session.form), "total": len(session.posed)}
        return found | (self._score(session) if view == "score" else self._question(session))

    def _view(self, session: Session) -> str:
        if not self.now.read:
            return "answered"
        return "question" if session.current is not None else "score"

    def _measured(self) -> dict[str, Any] | None:
        if self.now.measurement is not None:
            return {"claim": self.now.measurement.claim, "running": True, "seconds": self.now.measurement.seconds}
        if (shown := self.now.shown) is None:
            return None
        verdict = None if shown.verdict is None else shown.verdict.model_dump()
        return {"claim": shown.claim, "running": False, "verdict": verdict, "said": shown.said}

    def _menu(self) -> dict[str, Any]:
        kept, here = self._kept(), prove.claims()
        return {
            "timed": self.asked.timed,
            "fresh": self.asked.fresh,
            "subjects": {name: subject.title for name, subject in self.bank.subjects().items()},
            "wrong": len(kept.wrong),
            "open": sorted(kept.open),
            "claims": {name: name in here for name in claims()},
            "counts": {"short": draw.SHORT, "mixed": draw.MIXED, "full": draw.FULL},
        }

    def _question(self, session: Session) -> dict[str, Any]:
        number = self._number(session)
        asked, posed = question(session, self.bank, number), session.posed[number]
        left = None if session.left is None or not self.now.read else session.left - (time.monotonic() - self.now.posed)
        said = None if self.now.read else feedback(asked, session, number)
        return {
            "number": number,
            "subject": self.bank.subjects()[asked.subject].title,
            "stem": asked.stem,
            "options": [{"letter": one.letter, "text": one.text} for one in options(asked, posed)],
            "left": left,
            "feedback": None if said is None else asdict(said) | {"verdict": said.verdict},
        }

    def _number(self, session: Session) -> int:
        """The question in view: the next one, or the answered one that is still being read about."""
        if self.now.read:
            return len(session.answers)
        return next((k for k, answer in enumerate(session.answers) if answer.choice is None), len(session.answers) - 1)

    def _score(self, session: Session) -> dict[str, Any]:
        found = score(session, self.bank)
        rows: list[dict[str, str | int]] = [
            {"title": self.bank.subjects()[name].title, "right": right, "asked": of}
            for name, (right, of) in found.subjects.items()
        ]
        seconds = sum(answer.seconds for answer in session.answers)
        return {"right": found.right, "asked": found.asked, "rows": rows, "seconds": seconds}
