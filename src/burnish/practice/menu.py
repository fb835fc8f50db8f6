"""Menu: what can be practised, chosen by a letter; and the labs, each a claim measured here."""

from __future__ import annotations

from collections.abc import Sequence
from string import ascii_lowercase

from burnish import prove
from burnish.practice.bank import claims
from burnish.practice.draw import FULL, MIXED, SHORT, TESTS
from burnish.practice.keyboard import ENTER
from burnish.practice.terminal import QUIT, Desk, Left, show

LETTERS = "".join(letter for letter in ascii_lowercase if letter not in QUIT)


def choose(desk: Desk, head: str, rows: Sequence[str]) -> int | None:
    """The place of the row whose letter is pressed; None for Enter. Raises Left for Q."""
    desk.say()
    desk.say(head)
    for letter, row in zip(LETTERS, rows, strict=False):
        desk.say(row, "     ", f"  {letter.upper()}  ")
    while True:
        pressed = desk.key()
        if pressed == ENTER:
            return None
        if pressed and pressed in LETTERS[: len(rows)]:
            return LETTERS.index(pressed)
        desk.say(f"Press A to {LETTERS[len(rows) - 1].upper()}, or Q to leave.")


def form(desk: Desk, wrong: int) -> str | None:
    """The form that a person picks, None when they leave."""
    names = ["mixed", *(f"full {test}" for test in TESTS), "short", "labs", "wrong"]
    rows = [f"Mixed test, {MIXED} questions", *(f"Full-length test {test}, {FULL} questions" for test in TESTS)]
    rows += [f"Short set on one subject, {SHORT} questions", "Labs: the claims, measured here", f"{wrong} wrong before"]
    try:
        picked = choose(desk, "What to practise? A letter; Enter takes the mixed test, Q leaves.", rows)
        found = names[picked or 0]
        if found != "short":
            return found
        subjects = desk.bank.subjects()
        subject = choose(desk, "Which subject?", [one.title for one in subjects.values()])
        return f"short {list(subjects)[subject or 0]}"
    except Left:
        return None


def labs(desk: Desk) -> None:
    """Measure one claim after another, until the person goes."""
    names, here = claims(), prove.claims()
    rows = [name if name in here else f"{name} (not in this installation)" for name in names]
    try:
        while True:
            picked = choose(desk, "Which claim is to be measured on this machine? A letter; Q leaves.", rows)
            if picked is not None:
                show(desk, names[picked])
    except Left:
        return
