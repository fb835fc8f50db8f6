"""TaskScore: what judging by labelled examples gives, and Job: what a way of judging is handed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from burnish.load.checkpoint import Checkpoint

Rows = Sequence[tuple[str, Mapping[str, Any]]]  # file and line for messages, columns


@dataclass(frozen=True)
class TaskScore:
    """`about` says in one line how `examples` were judged; `classes` has counts by name where there are classes.

    `right` says of each example whether it was judged right, where that can be said.
    """

    about: str
    examples: int
    scores: dict[str, float]
    classes: dict[str, dict[str, float]] = field(default_factory=dict)
    right: tuple[bool, ...] = ()


@dataclass(frozen=True)
class Job:
    """Rows to judge a model by; `texts` are the columns that it reads. `model` stands in for the checkpoint's own weights."""

    checkpoint: Checkpoint
    rows: Rows
    texts: tuple[str, ...]
    batch: int
    new_tokens: int
    device: str
    progress: Callable[[int, int], None] | None = None
    model: Any = None

    def done(self, count: int, total: int) -> None:
        """Tell whoever watches."""
        if self.progress:
            self.progress(count, total)
