"""Document: what every page has in common, from its frame to sections, tables and headline numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib import resources

from burnish.markup import Html, el, join
from burnish.units import parts

_TILES_ACROSS = 3


def document(title: str, body: Html, styles: Sequence[str] = (), script: str = "") -> str:
    """A whole page that fetches nothing. `styles` are sheets of this package beside the common one, `script` a script of
    it that the page does not need to be read."""

    def asset(name: str) -> str:
        return resources.files("burnish").joinpath(name).read_text(encoding="utf-8")

    frame = asset("page.html").replace("{{style}}", "".join(asset(name) for name in ("page.css", *styles)))
    frame = frame.replace("{{script}}", f"<script>\n{asset(script)}</script>\n" if script else "")
    head, tail = frame.split("{{body}}")
    return head.replace("{{title}}", str(join(title))) + body + tail


def header(eyebrow: str, title: str, facts: Iterable[object]) -> Html:
    """What a page is about: its kind, its subject, and the first facts."""
    return el("header", el("p", eyebrow, cls="eyebrow"), el("h1", title), el("p", *facts, cls="facts"))


def section(title: str, note: object, *content: object) -> Html:
    """A part of the page: its heading and one line about it stand beside the content, above it on a phone."""
    side = el("div", el("h2", title), el("p", note) if note else None, cls="side")
    return el("section", side, el("div", *content, cls="content"))


def table(heads: Sequence[object], rows: Iterable[Sequence[object]], cls: str = "numbers") -> Html:
    """Rows of cells, each row headed by its first."""
    head = el("tr", *(el("th", name, scope="col") for name in heads))
    body = [el("tr", el("th", row[0], scope="row"), *(el("td", cell) for cell in row[1:])) for row in rows]
    return el("table", el("thead", head), el("tbody", *body), cls=cls)


def pairs(items: Iterable[tuple[object, object]]) -> Html:
    """Names and values, in columns where there is room."""
    return el("dl", *(el("div", el("dt", name), el("dd", value)) for name, value in items), cls="pairs")


def keys(items: Iterable[tuple[str, object]]) -> Html:
    """A legend: the class that colours each key, and its name."""
    return el("p", *(el("span", name, cls=f"key {cls}") for cls, name in items), cls="legend")


def tile(label: str, value: float, unit: str, source: str, note: object = "") -> Html:
    """A headline number and where it is from."""
    number, shown = parts(value, unit)
    if unit == "percent" and value > 0:
        number = f"+{number}"
    figure = el("dd", el("span", number), " ", el("small", shown) if shown else None, cls="value")
    about = el("dd", el("span", source, cls=source), join(" · ", note) if note else None)
    return el("div", el("dt", label), figure, about)


def tiles(items: Sequence[Html]) -> Html:
    """Headline numbers side by side."""
    across = len(items) if len(items) <= _TILES_ACROSS + 1 else _TILES_ACROSS
    return el("dl", *items, cls="tiles", style=f"--across:{across}")


def bar(share: float, cls: str) -> Html:
    """A share of a track; a sliver is drawn of what is not nothing."""
    return el("span", el("i", cls=cls, style=f"width:{max(share, 0.002):.2%}"), cls="track")
