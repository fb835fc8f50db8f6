"""Terminal: a test taken by keyboard, in a terminal of any width or over a pipe."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from burnish.errors import UserError
from burnish.practice import live, progress
from burnish.practice.bank import Bank
from burnish.practice.feedback import clock, feedback, options, took
from burnish.practice.keyboard import END, ENTER, Read
from burnish.practice.question import LETTERS, Question
from burnish.practice.session import Session, answered, question, score

WIDEST, NARROWEST = 88, 24
QUIT = ("q", END)


class Left(Exception):
    """The person goes."""


@dataclass(frozen=True)
class Desk:
    """Where a test is taken. `clean` takes from a text what would steer a terminal; `person` says that one sits there."""

    bank: Bank
    path: Path
    read: Read
    out: IO[str]
    columns: int
    person: bool
    clean: Callable[[str], str]

    def say(self, text: str = "", indent: str = "", first: str | None = None) -> None:
        """A paragraph, wrapped; `first` stands before its first line, `indent` before the others."""
        width = max(NARROWEST, min(WIDEST, self.columns))
        start = indent if first is None else first
        filled = textwrap.fill(
            self.clean(text), width, initial_indent=start, subsequent_indent=indent, break_on_hyphens=False
        )
        print(filled, file=self.out)
        self.out.flush()

    def key(self, seconds: float | None = None) -> str | None:
        """The next key, None when the time is up. Raises Left for Q and at the end of the input."""
        found = self.read(seconds)
        if found in QUIT:
            raise Left
        return found


def take(desk: Desk, session: Session, command: str) -> Session:
    """Ask until the end, or until the person goes; what was answered is kept either way, and `command` goes on."""
    total = len(session.posed)
    timed = f", {clock(session.left)} in all" if session.left is not None else ""
    desk.say(f"{title(session.form)}: {total} question{'s' if total > 1 else ''}{timed}.")
    desk.say("Keys: A B C D answer, S shows the claim measured here, Enter goes on, Q saves and leaves.")
    if session.answers:
        desk.say(f"Going on after question {len(session.answers)} of {total}; --fresh begins anew.")
    keep(desk, session, 0)
    try:
        while session.current is not None:
            number = len(session.answers)
            ask(desk, session, number)
            session = wait(desk, session)
            keep(desk, session, len(session.answers) - number)
            explain(desk, session, number)
            after(desk, question(session, desk.bank, number))
    except (Left, KeyboardInterrupt) as why:
        if session.current is not None:
            desk.say()
            desk.say(f"Saved after {len(session.answers)} of {total}. To go on:")
            print(f"  {desk.clean(command)}", file=desk.out, flush=True)  # whole, so that it can be copied
        if isinstance(why, KeyboardInterrupt):
            raise
    if session.current is None:
        result(desk, session)
    return session


def keep(desk: Desk, session: Session, new: int) -> None:
    """Write the answers down; where that cannot be, say so and let the test go on."""
    try:
        damage = progress.record(desk.path, desk.bank, session, new)
    except UserError as error:
        damage = f"Not saved: {error}"
    if damage:
        desk.say(damage)


def title(form: str) -> str:
    """A form in words."""
    kind, _, which = form.partition(" ")
    names = {"mixed": "Mixed test", "full": f"Full-length test {which}", "wrong": "What was wrong before"}
    return names.get(kind, f"Short set on {which}")


def ask(desk: Desk, session: Session, number: int) -> None:
    """Print a question and its options."""
    asked = question(session, desk.bank, number)
    left = f" · {clock(session.left)} left" if session.left is not None else ""
    subject = desk.bank.subjects()[asked.subject].title
    desk.say()
    desk.say(f"Question {number + 1} of {len(session.posed)} · {subject}{left}")
    desk.say(asked.stem, "  ")
    desk.say()
    for option in options(asked, session.posed[number]):
        desk.say(option.text, "     ", f"  {option.letter}  ")


def wait(desk: Desk, session: Session) -> Session:
    """The session with the next answer; other keys say which there are."""
    began = time.monotonic()
    while True:
        spent = time.monotonic() - began
        pressed = desk.key(None if session.left is None else max(0.0, session.left - spent))
        seconds = time.monotonic() - began
        if pressed is None or (session.left is not None and seconds >= session.left):
            return answered(session, None, seconds)
        if pressed.upper() in tuple(LETTERS):
            return answered(session, LETTERS.index(pressed.upper()), seconds)
        desk.say("Answer with A, B, C or D; Q saves and leaves.")


def explain(desk: Desk, session: Session, number: int) -> None:
    """Say whether it was right, why the answer is, and why each of the others is not."""
    asked = question(session, desk.bank, number)
    said = feedback(asked, session, number)
    desk.say()
    desk.say(said.verdict)
    desk.say(said.explanation, "  ")
    for reason in sorted(said.reasons, key=lambda reason: not reason.right):
        desk.say(reason.why, "     ", f"  {reason.letter}  {'right: ' if reason.right else 'wrong: '}")
    desk.say(f"Source: {said.source}", "  ")


def after(desk: Desk, asked: Question) -> None:
    """Go on, or first show the measurement behind the answer, as often as it is asked for."""
    desk.say(f"S: show me ({asked.claim}). Enter: go on.")
    while (pressed := desk.key()) != ENTER:
        if pressed == "s":
            show(desk, asked.claim, asked.options[asked.answer].text)
        desk.say(
            "S: show me again. Enter: go on." if pressed == "s" else "S: show me. Enter: go on. Q: save and leave."
        )


def show(desk: Desk, claim: str, answer: str | None = None) -> None:
    """Measure a claim on this machine and put what was found beside the answer. Raises Left where Q is pressed."""
    if said := live.absent(claim):
        desk.say(said)
        return
    measurement = live.start(claim)
    try:
        watch(desk, measurement)
    finally:
        live.stop(measurement)
    shown = live.result(measurement)
    if shown.verdict is None:
        desk.say(shown.said)
        return
    verdict = shown.verdict
    desk.say(f"{claim}: {'holds' if verdict.holds else 'does not hold'} here, in {took(verdict.seconds)}")
    lines = [("answer", answer)] if answer else [("claim", verdict.statement), ("varied", verdict.varied)]
    lines += [("measured", verdict.measured), ("expected", verdict.expected)]
    if answer is None:
        lines += [("held", verdict.held), ("why", verdict.why), ("source", verdict.source), ("code", verdict.code)]
    for name, text in lines:
        desk.say(text or "", " " * 12, f"  {name + ':':<10}")


def watch(desk: Desk, measurement: live.Measurement) -> None:
    """Wait for a measurement: a person sees the seconds pass and may leave."""
    said = f"measuring {measurement.claim} on this machine"
    if not desk.person:
        desk.say(f"{said} ...")
        measurement.process.wait()
        return
    while measurement.running:
        print(f"\r{said}: {int(measurement.seconds)} s", end="", file=desk.out, flush=True)
        desk.key(0.5)
    print("\r" + " " * (len(said) + 8) + "\r", end="", file=desk.out, flush=True)


def result(desk: Desk, session: Session) -> None:
    """The score, in all and by subject."""
    found = score(session, desk.bank)
    seconds = sum(answer.seconds for answer in session.answers)
    desk.say()
    desk.say(
        f"Score: {found.right} of {found.asked} right ({100 * found.right / found.asked:.0f} %) in {clock(seconds)}"
    )
    for name, (right, of) in found.subjects.items():
        desk.say(f"{right} of {of}  {desk.bank.subjects()[name].title}", " " * 10, "  ")
    if found.right < found.asked:
        desk.say("What was wrong, once more: burnish practice --wrong")
