"""Names: every decoder and every stack that a plan may be asked for, a line each."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from burnish.errors import UserError, nearest
from burnish.parameters import parameters
from burnish.presets import presets
from burnish.stack import stacks
from burnish.units import counted, show

WIDTH = 100
KNOWN = ("models", "stacks")


def lines(what: str) -> Iterator[str]:
    """The models or the stacks. Raises UserError for what is neither."""
    if what not in KNOWN:
        raise UserError(f"--list {what!r}: unknown; {nearest(what, KNOWN)}")
    yield from models() if what == "models" else profiles()


def models() -> Iterator[str]:
    """Presets with their sizes."""
    known = presets()
    wide = max(map(len, known))
    for name, row in known.items():
        size = show(float(parameters(row.model)), "short count").replace("\u00a0", " ")
        yield f"{name:<{wide}}  {size} parameters, {counted(int(row.model.layers), 'layer')}"


def profiles() -> Iterator[str]:
    """Stacks with their kinds and where their flags stand."""
    known = stacks()
    wide = max(map(len, known))
    for name, stack in known.items():
        start = f"{name:<{wide}}  {stack.kind:<10}"
        yield from textwrap.wrap(stack.source, WIDTH, initial_indent=start, subsequent_indent=" " * len(start))
