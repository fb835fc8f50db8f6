"""The parts of a report that show tables of results and pictures with what was found drawn over them."""

from __future__ import annotations

from burnish.document import section, table
from burnish.markup import Html, el
from burnish.records import Picture, Table


def tables(given: tuple[Table, ...]) -> Html | None:
    """One section for the first table's subject; None where there is none."""
    if not given:
        return None
    made = [
        el(
            "div",
            el("p", one.note, cls="verdict") if one.note else None,
            el("div", table(one.heads, one.rows), cls="wide", tabindex="0"),
        )
        for one in given
    ]
    return section(given[0].title, "Measured here, each step beside what it is compared with.", *made)


def pictures(given: tuple[Picture, ...]) -> Html | None:
    """Pictures side by side, each with what it shows; None where there is none."""
    if not given:
        return None
    style = "width:100%;image-rendering:pixelated"
    shown = [
        el(
            "figure",
            el("img", src=f"data:image/png;base64,{one.png}", alt=one.title, style=style),
            el("figcaption", el("b", one.title), " ", one.note),
            style="margin:0",
        )
        for one in given
    ]
    grid = "display:grid;gap:1rem;grid-template-columns:repeat(auto-fill,minmax(10rem,1fr))"
    return section("What it finds", given[0].legend, el("div", *shown, style=grid))
