"""Feedback: what is said after an answer, with the letters under which the options were shown."""

from __future__ import annotations

from dataclasses import dataclass

from burnish.practice.draw import Posed
from burnish.practice.live import absent
from burnish.practice.question import LETTERS, Question
from burnish.practice.session import Session
from burnish.units import show as in_unit


@dataclass(frozen=True)
class Reason:
    """An option with its letter, and why it is right or wrong."""

    letter: str
    text: str
    why: str
    right: bool


@dataclass(frozen=True)
class Feedback:
    """`chosen` is a letter, None where time ran out; `absent` says in one line that the claim cannot be measured here."""

    right: bool
    chosen: str | None
    answer: str
    reasons: tuple[Reason, ...]
    explanation: str
    source: str
    claim: str
    absent: str | None

    @property
    def verdict(self) -> str:
        """The first line."""
        if self.chosen is None:
            return f"Out of time. The answer is {self.answer}."
        return (
            f"Right: {self.answer}." if self.right else f"Wrong: you chose {self.chosen}, the answer is {self.answer}."
        )


def options(asked: Question, posed: Posed) -> tuple[Reason, ...]:
    """The options as shown."""
    return tuple(
        Reason(letter, asked.options[place].text, asked.options[place].why, place == asked.answer)
        for letter, place in zip(LETTERS, posed.order, strict=True)
    )


def feedback(asked: Question, session: Session, number: int) -> Feedback:
    """What is said about the answer to a question of the session."""
    shown, choice = options(asked, session.posed[number]), session.answers[number].choice
    chosen = None if choice is None else LETTERS[session.posed[number].order.index(choice)]
    answer = next(reason.letter for reason in shown if reason.right)
    return Feedback(
        right=chosen == answer,
        chosen=chosen,
        answer=answer,
        reasons=shown,
        explanation=asked.explanation,
        source=asked.source,
        claim=asked.claim,
        absent=absent(asked.claim),
    )


def clock(seconds: float) -> str:
    """Minutes and seconds."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def took(seconds: float) -> str:
    """How long a measurement took."""
    return in_unit(seconds, "seconds")
