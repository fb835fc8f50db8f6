"""Cluster: a chip, how many there are, and the links between them."""

from __future__ import annotations

from dataclasses import dataclass

from burnish.hardware import Chip


@dataclass(frozen=True)
class Link:
    """One kind of connection, a rank's share of it: `bandwidth` in byte/s each way, `latency` in seconds a collective."""

    name: str
    bandwidth: float
    latency: float
    source: str = ""


@dataclass(frozen=True)
class Cluster:
    """`nodes` of `per_node` chips. `domain` chips reach each other over `link`; beyond them traffic takes `network`."""

    name: str
    chip: Chip
    nodes: int
    per_node: int
    domain: int
    link: Link
    network: Link

    @property
    def gpus(self) -> int:
        """Chips in all."""
        return self.nodes * self.per_node
