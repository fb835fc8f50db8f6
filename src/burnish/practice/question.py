"""Question: a situation, four options with the reason of each, and the claim whose measurement shows the answer."""

from __future__ import annotations

from burnish.records import Frozen

LETTERS = "ABCD"


class Option(Frozen):
    """One of the four: what it says, and why it is right or wrong."""

    text: str
    why: str


class Question(Frozen):
    """`answer` is the place of the right option among `options`; `claim` is a name that `burnish prove` takes."""

    id: str
    subject: str
    stem: str
    options: tuple[Option, ...]
    answer: int
    explanation: str
    claim: str
    source: str
