"""Crew: the ranks of a run as a group that agrees on what is no number of a step: an answer, an error, a request to stop.

What is exchanged here is small and lies in host memory, so it goes over gloo whatever the gradients travel by.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from burnish.errors import BurnishError, UserError

T = TypeVar("T")
_Parts = tuple[type[BurnishError], tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True)
class Crew:
    """This rank among `world` of them; one alone has no group."""

    rank: int = 0
    world: int = 1
    group: dist.ProcessGroup | None = None

    @property
    def leads(self) -> bool:
        """Whether this rank writes the files and speaks to the user."""
        return self.rank == 0

    def gather(self, value: T) -> list[T]:
        """The value of every rank, in their order."""
        if self.group is None:
            return [value]
        values: list[Any] = [None] * self.world
        dist.all_gather_object(values, value, group=self.group)
        return values

    def largest(self, number: int) -> int:
        """The largest of the ranks' numbers."""
        if self.group is None:
            return number
        found = torch.tensor(number, dtype=torch.int64)
        dist.all_reduce(found, dist.ReduceOp.MAX, group=self.group)
        return int(found)

    def every(self, action: Callable[[], T]) -> T:
        """What `action` gives on this rank. Where it raises an error for users, all ranks raise that of the first such rank."""
        made, error = _tried(action)
        if error := next((found for found in self.gather(error) if found is not None), None):
            raise _error(error)
        return made  # type: ignore[return-value]

    def first(self, action: Callable[[], T]) -> T:
        """What `action` gives on the first rank, on every rank; an error for users is raised on all of them."""
        made, error = _tried(action) if self.leads else (None, None)
        if self.group is not None:
            answer: list[Any] = [made, error]
            dist.broadcast_object_list(answer, group_src=0, group=self.group)
            made, error = answer
        if error is not None:
            raise _error(error)
        return made  # type: ignore[return-value]


ALONE = Crew()


def _tried(action: Callable[[], T]) -> tuple[T | None, _Parts | None]:
    """The answer, or the error in parts: not every error is made again from its text alone."""
    try:
        return action(), None
    except BurnishError as error:
        return None, (type(error), error.args, dict(vars(error)))


def _error(parts: _Parts) -> BurnishError:
    kind, args, rest = parts
    error = kind.__new__(kind, *args)
    vars(error).update(rest)
    return error


def started_crew() -> Crew:
    """The crew of the ranks that were started together; every rank calls this."""
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return ALONE
    whole = dist.group.WORLD
    group = whole if dist.get_backend() == "gloo" else dist.new_group(backend="gloo")
    return Crew(dist.get_rank(), dist.get_world_size(), group)


def check_equal(crew: Crew, mine: dict[str, Any], differing: Callable[[Any, Any], list[str]]) -> None:
    """Raises UserError, on every rank, when a rank has other settings than the first, naming the rank and the key."""
    first, *others = crew.gather(mine)
    for rank, theirs in enumerate(others, 1):
        if changed := differing(first, theirs):
            raise UserError(
                f"rank {rank} has another recipe or other data than rank 0 ({changed[0]}); give all ranks the same"
            )
