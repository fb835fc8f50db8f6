"""Progress: what a person watches while something long runs; a bar with the time left, or plain lines in a log."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

LINES = 10  # progress lines of one task where there is no terminal


class Watcher(Protocol):
    """Told how far a task is."""

    def __call__(self, done: int, total: int, detail: str = "", eta: float | None = None) -> None: ...


class _Console(Console):
    """A console whose reader may leave: the work goes on in silence."""

    def on_broken_pipe(self) -> None:
        self.quiet = True


class Screen:
    """Messages and bars on the console; silent when `quiet`."""

    def __init__(self, quiet: bool = False) -> None:
        self.console = _Console(stderr=True, quiet=quiet, highlight=False)

    def say(self, message: str) -> None:
        """One line."""
        self.console.print(message)

    @contextmanager
    def task(self, name: str) -> Iterator[Watcher]:
        """A task with a bar on a terminal, else a line now and then."""
        if not self.console.is_terminal:
            yield _lines(self.console, name)
            return
        columns: tuple[Any, ...] = (
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[detail]}"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
        )
        with Progress(*columns, console=self.console, transient=True) as bar:
            task = bar.add_task(name, total=None, detail="", left="")

            def watch(done: int, total: int, detail: str = "", eta: float | None = None) -> None:
                bar.update(task, completed=done, total=total, detail=detail, left=_left(eta))

            yield watch


def _lines(console: Console, name: str) -> Watcher:
    shown = -1

    def watch(done: int, total: int, detail: str = "", eta: float | None = None) -> None:
        nonlocal shown
        part = done * LINES // max(total, 1)
        if part != shown:
            shown = part
            console.print("  ".join(text for text in (f"{name} {done}/{total}", detail, _left(eta)) if text))

    return watch


def _left(eta: float | None) -> str:
    if eta is None:
        return ""
    minutes, seconds = divmod(round(eta), 60)
    return f"{minutes}:{seconds:02d} left"
