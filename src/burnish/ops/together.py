"""Together: what the ranks of a step share, and the members that each technique adds to what happens around it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain

import torch
import torch.distributed as dist
from torch import Tensor, nn

from burnish.errors import UserError
from burnish.groups import Groups


class Member:
    """What one way of dividing work adds to a step; nothing, unless it says so."""

    def before(self, index: int, count: int, part: nn.Module | None = None) -> None:
        """Micro batch `index` of `count` is about to run; where `part` is given, its backward through that part."""

    def reduced(self) -> None:
        """The last backward is over: from here on gradients are those of all ranks."""

    def updated(self) -> None:
        """The update is done, or was left out."""

    def counts(self, parameter: Tensor) -> bool:
        """Whether this rank's part of a parameter's gradient is counted in its norm; what several hold counts once."""
        return True

    def replaced(self, by: Mapping[Tensor, Tensor]) -> None:
        """A later technique holds other parameters in place of those it was given."""

    def shards(self) -> Iterable[Tensor]:
        """Parameters beside those that the modules hold."""
        return ()

    def held_apart(self) -> Iterable[Tensor]:
        """Gradients between micro batches that are not in `.grad`."""
        return ()


class Together:
    """The ranks of one step. Its sums go over all of them in one small all-reduce; float64 keeps counts and losses exact."""

    alone = False

    def __init__(self, groups: Groups, device: torch.device) -> None:
        self.groups = groups
        self.axes = groups.axes
        self.device = device
        self.members: list[Member] = []  # in the order in which techniques were applied

    @property
    def speaks(self) -> bool:
        """Whether this rank's loss, labels and tokens are counted: ranks that divide one row's work count it once."""
        places = self.groups.places
        last = self.groups.of["pp"].size() - 1 if "pp" in self.groups.of else 0
        return places["tp"] == 0 and places["pp"] == last

    def before(self, index: int, count: int, part: nn.Module | None = None) -> None:
        for member in self.members:
            member.before(index, count, part)

    def reduced(self) -> None:
        """The last technique that was applied is the first whose gradients are ready."""
        for member in reversed(self.members):
            member.reduced()

    def share(self, loss: float, labels: int, tokens: int, norm: float) -> tuple[float, int, int, float]:
        """Sums of loss, labels and tokens, and the norm of the whole gradient. `norm` is of what this rank counts."""
        said = [loss, labels, tokens] if self.speaks else [0.0, 0.0, 0.0]
        sums = torch.tensor([*said, norm * norm], dtype=torch.float64, device=self.device)
        dist.all_reduce(sums, group=self.groups.whole)
        loss, all_labels, all_tokens, squares = sums.tolist()
        return loss, int(all_labels), int(all_tokens), squares**0.5

    def updated(self) -> None:
        for member in self.members:
            member.updated()

    def counts(self, parameter: Tensor) -> bool:
        return all(member.counts(parameter) for member in self.members)

    def replaced(self, by: Mapping[Tensor, Tensor]) -> None:
        for member in self.members:
            member.replaced(by)

    def shards(self) -> Iterator[Tensor]:
        return chain.from_iterable(member.shards() for member in self.members)

    def held_apart(self) -> Iterator[Tensor]:
        return chain.from_iterable(member.held_apart() for member in self.members)


def check_same_weights(parts: Iterable[nn.Module], groups: Groups) -> None:
    """Raises UserError, on every rank, when ranks would start from different weights: nothing would make them equal."""
    named = [pair for part in parts for pair in (*part.named_parameters(), *part.named_buffers())]
    sums = torch.stack([tensor.detach().to(torch.float64).sum() for _, tensor in named])
    highest, lowest = sums.clone(), sums.clone()
    dist.all_reduce(highest, dist.ReduceOp.MAX, group=groups.whole)
    dist.all_reduce(lowest, dist.ReduceOp.MIN, group=groups.whole)
    if differing := [name for (name, _), differs in zip(named, (highest != lowest).tolist(), strict=True) if differs]:
        raise UserError(
            f"ranks start from different weights ({differing[0]}); use one train.seed and the same files on all of them"
        )
