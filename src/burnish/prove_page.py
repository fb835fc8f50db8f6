"""Claims as one HTML page that needs nothing but itself: all in a table, then each with what was varied, held and seen."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from burnish.document import document, header, pairs, section, table, tile, tiles
from burnish.hardware import detect
from burnish.markup import Html, el, join
from burnish.prove.claim import Verdict
from burnish.records import replaced, write_text
from burnish.units import counted, date, show

LABELS = ("varied", "held", "expected", "measured", "why", "source", "code")


def check(path: Path) -> None:
    """Raises UserError, before anything is measured, where the page cannot be written."""
    replaced(path, folders=False)


def write(path: Path, verdicts: Sequence[Verdict]) -> None:
    """Write the page of verdicts measured just now."""
    write_text(path, page(verdicts, datetime.now(UTC).astimezone().isoformat(timespec="seconds")), folders=False)


def page(verdicts: Sequence[Verdict], when: str) -> str:
    """The page of verdicts that were measured at `when` (ISO 8601). Every string is escaped."""
    held, machine = sum(verdict.holds for verdict in verdicts), detect()
    facts = [
        el("span", mark(held == len(verdicts), "all hold", "some do not hold"), cls="status"),
        el("time", date(when), datetime=when),
        el("span", machine.name),
    ]
    figures = tiles(
        [
            tile("claims that hold", held, "count", "measured", f"of {counted(len(verdicts), 'claim')}"),
            tile("time in all", sum(verdict.seconds for verdict in verdicts), "seconds", "measured"),
        ]
    )
    every = el("main", overview(verdicts), *map(explained, verdicts))
    body = join(header("Burnish prove", "Claims, measured here", facts), figures, every)
    return document("Claims, measured here \u2013 Burnish", body, ["prove_page.css"])


def mark(holds: bool, yes: str = "holds", no: str = "does not hold") -> Html:
    """A verdict, in words as well as in colour."""
    return el("span", yes if holds else no, cls="passed" if holds else "failed")


def overview(verdicts: Sequence[Verdict]) -> Html:
    """All claims in one table, each leading to its part of the page."""
    rows = [
        (
            el("a", verdict.claim, href=f"#{verdict.claim}"),
            verdict.expected,
            verdict.measured,
            mark(verdict.holds),
        )
        for verdict in verdicts
    ]
    return section(
        "All", "Expected beside measured.", table(("claim", "expected", "measured", "verdict"), rows, "words")
    )


def explained(verdict: Verdict) -> Html:
    """One claim in full."""
    values = verdict.model_dump()
    note = join(mark(verdict.holds), ", ", show(verdict.seconds, "seconds"))
    named = section(verdict.claim, note, el("p", verdict.statement), pairs((key, values[key]) for key in LABELS))
    return el("div", named, id=verdict.claim)
