"""Row cluster: the machine of a published row, from the names its line gives."""

from __future__ import annotations

import math
import re

from burnish.cluster import Cluster, chip_for, link_for, network_for
from burnish.errors import UserError
from burnish.rows.cells import Cells, NotExpressed
from burnish.rows.rules import table

NODE = 8  # chips of a node where it is not said


def cluster_of(cells: Cells, gpus: int) -> Cluster:
    """The chips a line used and how they reach each other. Raises NotExpressed for a chip that is not known."""
    name = cells.text("gpu")
    try:
        chip = chip_for(name, cells.number("gpu_mem_gb"))
    except UserError as error:
        raise NotExpressed(f"gpu: {error}") from None
    node = min(cells.whole("gpus_per_node") or NODE, gpus)
    domain = next((size for match, size in table()["domain"]["chips"] if re.search(match, name, re.IGNORECASE)), node)
    return Cluster(
        name=f"{name}:{gpus}",
        chip=chip,
        nodes=math.ceil(gpus / node),
        per_node=node,
        domain=max(node, domain),
        link=link_for(chip.name),
        network=network_for(chip.name, cells.text("interconnect")),
    )
