"""Cluster: a chip, how many there are, and the links between them, read from a short text such as `h100-sxm:8x8`."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

from burnish.errors import UserError, nearest
from burnish.hardware import Chip, chips, detect, graphics
from burnish.hardware import chip_for as chip_for
from burnish.interconnect import Link as Link
from burnish.interconnect import link, named_in
from burnish.machine_file import MOST, Machine, read

OPTIONS = ("per_node", "domain", "link", "network")
FORM = "write CHIP, CHIP:COUNT or CHIP:NODESxPER_NODE, then options such as ,network=ethernet-100 or ,domain=64"
PLAIN = {"volta": "nvlink2", "cpu": "memory"}  # what joins chips where a file does not say, by generation; else PCIe


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

    def __str__(self) -> str:
        """The text that `cluster` reads as this one; the name of one that was read from a file or made by hand."""
        if self.chip != chips().get(self.chip.key):
            return self.name
        text = f"{self.chip.key}:{self.nodes}x{self.per_node}"
        if self.domain != _domain(self.chip, self.nodes, self.per_node):
            text += f",domain={self.domain}"
        if self.link.name != self.chip.link:
            text += f",link={self.link.name}"
        return text if self.network.name == self.chip.network else f"{text},network={self.network.name}"


def link_for(chip: str | Chip) -> Link:
    """What joins the chips of a node or rack, for a chip or its name."""
    found = chip_for(chip) if isinstance(chip, str) else chip
    return link(found.link, found.per_node)


def network_for(chip: str | Chip, written: str = "", per_node: int = 0) -> Link:
    """What joins the nodes: as `written` in a published table, or what the chip is usually sold with."""
    found = chip_for(chip) if isinstance(chip, str) else chip
    return link(named_in(written) or found.network, per_node or found.per_node)


def cluster(text: str) -> Cluster:
    """A cluster from `CHIP`, `CHIP:COUNT`, `CHIP:NODESxPER_NODE`, `here`, or a TOML file, each with options behind it.

    Options, after a comma or plus: `per_node=N`, `domain=N` (chips that share fast links), `link=NAME`, `network=NAME`.
    Raises UserError, in one line, for what cannot be read.
    """
    given = text.strip()
    if given.lower().endswith(".toml") or ("/" in given and Path(given).is_file()):
        return _from_file(read(Path(given)), given)
    head, *rest = (part.strip() for part in re.split(r"[,+]", given))
    options = _options(rest, given)
    name, colon, count = (part.strip() for part in head.partition(":"))
    if not name or (colon and not count):
        raise UserError(f"cluster {given!r}: no {'count behind the colon' if name else 'chip'}; {FORM}")
    if name.lower() == "here" and not colon:
        chip, found = here()
        return _made("here", chip, (1, _whole(options, "per_node", found, given)), options, given)
    try:
        chip = chip_for(name)
    except UserError as error:
        raise UserError(f"cluster {given!r}: {error}") from None
    return _made("", chip, _count(count, chip, options, given), options, given)


def _options(parts: list[str], given: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for part in parts:
        key, _, value = (side.strip() for side in part.partition("="))
        if key not in OPTIONS:
            raise UserError(f"cluster {given!r}: unknown option {key!r}; {nearest(key, OPTIONS)}")
        if not value or key in found:
            raise UserError(f"cluster {given!r}: {key} {'is given twice' if key in found else 'has no value'}; {FORM}")
        found[key] = value
    return found


def _number(text: str, what: str, given: str) -> int:
    if not re.fullmatch(r"[+-]?[0-9]{1,12}", text):
        raise UserError(f"cluster {given!r}: {what} {text!r} is not a whole number; {FORM}")
    if not 1 <= int(text) <= MOST:
        raise UserError(f"cluster {given!r}: {what} is {int(text)}; 1 to {MOST}")
    return int(text)


def _whole(options: dict[str, str], key: str, default: int, given: str) -> int:
    return _number(options[key], key, given) if key in options else default


def _count(count: str, chip: Chip, options: dict[str, str], given: str) -> tuple[int, int]:
    """Nodes and chips of a node."""
    if "x" in count.lower():
        if "per_node" in options:
            raise UserError(f"cluster {given!r}: chips of a node are given twice, in {count!r} and as per_node")
        nodes, _, own = (part.strip() for part in count.lower().partition("x"))
        return _number(nodes, "number of nodes", given), _number(own, "chips of a node", given)
    per_node = _whole(options, "per_node", chip.per_node, given)
    total = _number(count, "number of chips", given) if count else per_node
    if total <= per_node:
        return 1, total
    if total % per_node:
        whole = total // per_node
        raise UserError(
            f"cluster {given!r}: {total} chips do not fill nodes of {per_node}; "
            f"write {whole}x{per_node}, {whole + 1}x{per_node}, or 1x{total} for one node"
        )
    return total // per_node, per_node


def _domain(chip: Chip, nodes: int, per_node: int) -> int:
    """Chips that share fast links where it is not said: a node's, an equal part of one, or whole nodes of a rack."""
    usual = chip.domain or per_node
    if usual > chip.per_node and usual >= per_node:
        return min(usual // per_node, nodes) * per_node
    return usual if per_node % usual == 0 else per_node


def _made(name: str, chip: Chip, counts: tuple[int, int], options: dict[str, str], given: str) -> Cluster:
    nodes, per_node = counts
    domain = _whole(options, "domain", _domain(chip, nodes, per_node), given)
    _check_domain(domain, nodes, per_node, given)
    inner = link(options.get("link", chip.link), per_node, f"cluster {given!r}: link")
    outer = link(options.get("network", chip.network), per_node, f"cluster {given!r}: network")
    made = Cluster(name, chip, nodes, per_node, domain, inner, outer)
    return made if name else replace(made, name=str(made))


def _check_domain(domain: int, nodes: int, per_node: int, given: str) -> None:
    if domain > nodes * per_node or (domain % per_node and per_node % domain):
        raise UserError(
            f"cluster {given!r}: domain {domain} must be whole nodes of {per_node} or an equal part of one, "
            f"at most {nodes * per_node}"
        )


def _from_file(machine: Machine, given: str) -> Cluster:
    chip, nodes = machine.chip, machine.nodes
    per_node = machine.per_node or chip.per_node
    domain = machine.domain or _domain(chip, nodes, per_node)
    _check_domain(domain, nodes, per_node, given)
    usual = (chip.link or PLAIN.get(chip.architecture, "pcie4"), chip.network or "ethernet-25")
    inner, outer = (
        link(value, per_node, f"{given}: {what}") if isinstance(value, str) else value
        for what, value in (("link", machine.link or usual[0]), ("network", machine.network or usual[1]))
    )
    return Cluster(given, chip, nodes, per_node, domain, inner, outer)


def here() -> tuple[Chip, int]:
    """This machine: its graphics cards and how many, or its processor at the rate of a usual one with as many cores."""
    if cards := graphics():
        name, memory = cards[0]
        try:
            return chip_for(name, memory / 1e9), len(cards)
        except UserError as error:
            raise UserError(f"cluster 'here': {error}; measure it: burnish hardware probe --save here.toml") from None
    found, usual = detect(), chips()["cpu"]
    flops = {form: rate * found.threads / usual.threads for form, rate in usual.flops.items()}
    return replace(usual, key="", name=found.name, memory=found.memory, threads=found.threads, flops=flops), 1
