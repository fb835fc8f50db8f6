"""HTML that is escaped by construction: text becomes markup only by passing through `el`."""

from __future__ import annotations

import html


class Html(str):
    """Markup that is already safe to place in a page."""

    __slots__ = ()


def text(value: object) -> Html:
    """Any value as escaped text; markup is kept as it is."""
    return value if isinstance(value, Html) else Html(html.escape(str(value), quote=True))


def el(tag: str, *children: object, **attributes: object) -> Html:
    """An element. Children and attribute values are escaped; None leaves one out; `cls` is the class, `_` a hyphen."""
    names = {"cls": "class"}
    pairs = [(names.get(n, n.replace("_", "-")), v) for n, v in attributes.items() if v is not None]
    head = "".join([f"<{tag}", *(f' {name}="{html.escape(str(value), quote=True)}"' for name, value in pairs), ">"])
    return Html(head + join(*children) + f"</{tag}>")


def join(*children: object) -> Html:
    """Several pieces one after another; None is left out."""
    return Html("".join(text(child) for child in children if child is not None))
