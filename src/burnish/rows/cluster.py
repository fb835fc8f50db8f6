"""Row cluster: the machine of a published row, from the names its line gives."""

from __future__ import annotations

import math
import re
from dataclasses import replace

from burnish.cluster import Cluster, chip_for, link_for, network_for
from burnish.errors import UserError
from burnish.hardware import GIB, Chip
from burnish.rows.cells import Cells, NotExpressed
from burnish.rows.rules import table

USABLE = 0.985  # of the memory on a card's name, what programs see; the mean of the table of chips


def cluster_of(cells: Cells, gpus: int) -> Cluster:
    """The chips a line used and how they reach each other. Raises NotExpressed for a chip that is not known."""
    name = cells.text("gpu")
    chip = _capped(cells, name, _chip(cells, name, cells.number("gpu_mem_gb")))
    full = cells.whole("gpus_per_node") or chip.per_node
    node = min(full, gpus)
    return Cluster(
        name=f"{name}:{gpus}",
        chip=chip,
        nodes=math.ceil(gpus / node),
        per_node=node,
        domain=chip.domain or node,
        link=link_for(chip),
        network=network_for(chip, cells.text("interconnect"), full),
    )


def _capped(cells: Cells, name: str, chip: Chip) -> Chip:
    """The chip with the rates it has under a power limit that its line names."""
    cap = table()["power_limited"]
    if not re.search(cap["match"], name, re.IGNORECASE):
        return chip
    cells.assume(f"rates x {cap['share']}: {cap['why']}")
    return replace(chip, flops={form: rate * cap["share"] for form, rate in chip.flops.items()})


def _chip(cells: Cells, name: str, memory: float | None) -> Chip:
    """A chip by name; of one that only its memory is known of, the chip named in `stand_in` with that memory."""
    try:
        return chip_for(name, memory)
    except UserError as error:
        if memory is None or cells.blank("stand_in"):
            raise NotExpressed(f"gpu: {str(error).partition('; ')[0]}") from None
    cells.assume(f"gpu {name or 'not named'}: its memory alone counts")
    return replace(chip_for(cells.text("stand_in")), name=name, key="", memory=USABLE * memory * GIB)
