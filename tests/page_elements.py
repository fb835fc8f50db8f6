"""A page taken apart: its elements, and how well its colours are told from each other."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from importlib import resources

VOID = {"meta"}


class Elements(HTMLParser):
    """Tags, attributes and headings of a page, with a check that every element is closed."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.headings: list[str] = []
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] in ("h1", "h2"):
            self.headings.append(data)


def colors_of(sheet: str, theme: str) -> dict[str, str]:
    """The colours by name that a style sheet of the package sets for "light" or "dark"."""
    css = resources.files("burnish").joinpath(sheet).read_text(encoding="utf-8")
    blocks = re.findall(r":root \{(.*?)\}", css, re.S)
    return dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", blocks[0 if theme == "light" else 1]))


def luminance(color: str) -> float:
    """Relative luminance of #rrggbb (WCAG 2.2)."""
    channels = [int(color[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    """Contrast ratio of two colours (WCAG 2.2)."""
    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


def assert_nothing_is_fetched(page: str) -> None:
    """No element, attribute, style or text that would load something, and a policy that forbids it."""
    elements = Elements(page)
    assert not {"link", "img", "iframe", "object", "embed", "video", "audio"} & set(elements.tags)
    assert not [name for name, _ in elements.attributes if name in ("src", "href", "srcset", "action")]
    for word in ("http://", "https://", "url(", "@import"):
        assert word not in page
    assert "default-src 'none'" in page
