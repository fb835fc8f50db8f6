"""Hardware as text: the table of chips, one chip with its sources, this machine, and what a probe found."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any

from burnish.cluster import here, link_for, network_for
from burnish.errors import UserError
from burnish.hardware import GIB, Chip, chips, detect, graphics
from burnish.interconnect import Link
from burnish.units import show

FORMATS = ("fp32", "tf32", "bf16", "fp16", "fp8", "fp4")
HEAD = ("chip", "GiB", "TB/s", *FORMATS[2:], "generation", "node", "link", "calib.")
WIDTHS = (16, 5, 4, 6, 6, 6, 5, 15, 4, 14, 0)
WIDE = 100


def listed() -> Iterator[str]:
    """All known chips, a line each: memory, its speed, dense TFLOP/s by format, how they are joined."""
    yield _row(HEAD)
    for key, chip in chips().items():
        rates = (_tera(chip.flops.get(form, 0.0)) for form in FORMATS[2:])
        joined = (f"{chip.per_node}/{chip.domain or chip.per_node}", chip.link)
        times = "yes" if chip.calibrated else "no"
        sizes = (f"{chip.memory / GIB:.1f}", f"{chip.bandwidth / 1e12:.2f}")
        yield _row((key, *sizes, *rates, chip.architecture, *joined, times))
    yield "formats: dense TFLOP/s; node: its chips / chips that share the link; calib.: times held against runs"
    yield "burnish hardware show CHIP gives the network and the source of each figure"


def _row(cells: tuple[str, ...]) -> str:
    return " ".join(f"{cell:<{width}}" for cell, width in zip(cells, WIDTHS, strict=True)).rstrip()


def _tera(rate: float) -> str:
    return f"{rate / 1e12:.5g}" if rate else "-"


def described(chip: Chip) -> Iterator[str]:
    """One chip, its links and where each figure stands."""
    link, network = link_for(chip), network_for(chip)
    yield f"{chip.key}: {chip.name}"
    yield from rates(chip)
    domain = chip.domain or chip.per_node
    yield f"  node: {chip.per_node} chips; {domain} share {link.name}, {link.bandwidth / 1e9:.4g} GB/s each way"
    yield f"  between nodes: {network.name}, {network.bandwidth / 1e9:.4g} GB/s each way for a chip"
    yield from _wrapped(f"  source: {chip.source}")
    yield from _wrapped(f"  source of {link.name}: {link.source}")
    yield from _wrapped(f"  source of {network.name}: {network.source}")
    held = f"held against {chip.calibrated}" if chip.calibrated else "uncalibrated, from the data sheet alone"
    yield f"  times: {held}"


def _wrapped(line: str) -> list[str]:
    """A line on as many as it takes, the further ones indented."""
    return textwrap.wrap(line, WIDE, subsequent_indent=" " * 4)


def rates(chip: Chip) -> Iterator[str]:
    """Memory and rates."""
    yield f"  memory: {show(chip.memory, 'bytes')}, {chip.bandwidth / 1e9:,.4g} GB/s"
    known = [f"{form} {_tera(chip.flops[form])}" for form in FORMATS if form in chip.flops]
    absent = [form for form in FORMATS[2:] if form not in chip.flops]
    yield f"  TFLOP/s: {', '.join(known)}" + (f"; without {', '.join(absent)}" if absent else "")
    if chip.launch:
        yield f"  small operations: one each {chip.launch * 1e6:.3g} microseconds"


def machine() -> dict[str, Any]:
    """This machine as plain values: processor, cards, and the cluster text that means it."""
    processor = detect()
    values: dict[str, Any] = {
        "processor": processor.name,
        "cores": processor.threads,
        "memory_gib": round(processor.memory / GIB, 1),
        "cards": [{"name": name, "memory_gib": round(memory / GIB, 1)} for name, memory in graphics()],
        "cluster": "here",
    }
    try:
        chip, count = here()
        values |= {"chip": chip.key or "cpu", "count": count}
    except UserError as error:
        values |= {"chip": None, "count": len(values["cards"]), "note": str(error)}
    return values


def detected() -> Iterator[str]:
    """This machine in a few lines."""
    values = machine()
    yield f"processor: {values['processor']}, {values['cores']} cores, {values['memory_gib']} GiB"
    for card in values["cards"]:
        yield f"card: {card['name']}, {card['memory_gib']} GiB"
    if not values["cards"]:
        yield "cards: none that a driver lists"
    if values["chip"] is None:
        yield from _wrapped(f"note: {values['note']}")
    elif values["chip"] == "cpu":
        yield "cluster: here; its rates are those of a usual processor until burnish hardware probe measures them"
    else:
        yield f"cluster: here, the same as {values['chip']}:1x{values['count']}"


def probed(chip: Chip, count: int, link: Link | None) -> Iterator[str]:
    """What a probe found."""
    yield f"{chip.name}{f', {count} of them' if count > 1 else ''}, {chip.calibrated}"
    yield from rates(chip)
    if link:
        yield f"  from one to the next: {link.bandwidth / 1e9:.4g} GB/s, {link.latency * 1e6:.3g} microseconds"
