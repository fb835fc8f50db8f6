"""Interconnect: links between chips as data, with their sources, and how published tables write them."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from burnish.errors import UserError, nearest


@dataclass(frozen=True)
class Link:
    """One kind of connection, a rank's share of it: `bandwidth` in byte/s each way, `latency` in seconds a collective."""

    name: str
    bandwidth: float
    latency: float
    source: str = ""


@cache
def _tables() -> dict[str, Any]:
    path = Path(__file__).parent / "tables" / "hardware" / "links.toml"
    return tomllib.loads(path.read_text(encoding="utf-8"))


@cache
def links() -> dict[str, dict[str, Any]]:
    """The links that can be named, as their tables stand."""
    return {name: row for name, row in _tables().items() if isinstance(row, dict)}


def link(name: str, per_node: int, where: str = "link") -> Link:
    """A link by name, as one of `per_node` chips gets it. Raises UserError naming the nearest known one."""
    row = links().get(name.lower())
    if row is None:
        raise UserError(f"{where} {name!r}: unknown; {nearest(name.lower(), links())}")
    own = row["gbyte"] * 1e9 if "gbyte" in row else row["node_gbit"] * 1e9 / 8 / per_node
    return Link(name.lower(), own, row["latency"], row["source"])


def named_in(written: str) -> str | None:
    """The name of the network that a published table's words mean, None where they name none."""
    for row in _tables()["written"]:
        if (match := re.search(row["match"], written.lower())) is not None:
            return str(row["network"]).format(match[0], *match.groups())
    return None
