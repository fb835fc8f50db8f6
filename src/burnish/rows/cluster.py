"""Row cluster: the machine of a published row, from the names its line gives."""

from __future__ import annotations

import math

from burnish.cluster import Cluster, chip_for, link_for, network_for
from burnish.errors import UserError
from burnish.rows.cells import Cells, NotExpressed


def cluster_of(cells: Cells, gpus: int) -> Cluster:
    """The chips a line used and how they reach each other. Raises NotExpressed for a chip that is not known."""
    name = cells.text("gpu")
    try:
        chip = chip_for(name, cells.number("gpu_mem_gb"))
    except UserError as error:
        raise NotExpressed(f"gpu: {error}") from None
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
