"""What a launcher tells a process in its environment: which rank it is, of how many, and how many stand on its machine.

The names are those of torchrun, which the launcher of `--nproc` and the Slurm script use too.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from burnish.errors import UserError

NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
ATTEMPT = "TORCHELASTIC_RESTART_COUNT"
RUN = "TORCHELASTIC_RUN_ID"


@dataclass(frozen=True)
class RankPlace:
    """Rank `rank` of `world`, the `local`-th of `per_node` on its machine; all meet at `address`:`port`.

    `attempt` tells apart what ranks say in one start and in the next after a restart.
    """

    rank: int = 0
    world: int = 1
    local: int = 0
    per_node: int = 1
    address: str = ""
    port: int = 0
    attempt: str = ""

    @property
    def alone(self) -> bool:
        return self.world == 1

    def refuse_another(self, option: str) -> None:
        """Raises UserError where a launcher has started this process already."""
        if not self.alone:
            raise UserError(
                f"{option}: this is rank {self.rank} of {self.world} that were started already; leave it out"
            )


def rank_place(environment: Mapping[str, str] = os.environ) -> RankPlace:
    """The place of this process; alone where no launcher has started it. Raises UserError for half an environment."""
    if environment.get("WORLD_SIZE", "1") == "1":
        return RankPlace()
    if absent := [name for name in NAMES if not environment.get(name)]:
        raise UserError(
            f"WORLD_SIZE is {environment['WORLD_SIZE']}, but {', '.join(absent)} {'are' if len(absent) > 1 else 'is'} not "
            "set; start ranks with --nproc or torchrun"
        )
    try:
        rank, world, local, per_node = (int(environment[name]) for name in NAMES[:4])
        port = int(environment["MASTER_PORT"])
    except ValueError as error:
        raise UserError(f"{', '.join(NAMES[:4])}, MASTER_PORT: {error}; they are whole numbers") from None
    attempt = f"{environment.get(RUN, '')}/{environment.get(ATTEMPT, '0')}"
    return RankPlace(rank, world, local, per_node, environment["MASTER_ADDR"], port, attempt)
