"""The Python files a rule reads, each parsed once."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path

FOLDERS = ("src", "tests", "bench", "scripts")
NOT_OURS = "bench/scratch"  # environments and checkouts of peers, made by benches and ignored by git


@dataclass(frozen=True)
class Source:
    """One file: its path relative to the root, its lines and its syntax tree."""

    path: str
    lines: list[str]
    tree: ast.Module


def sources(root: Path, folders: tuple[str, ...] = FOLDERS) -> list[Source]:
    """Every .py file of ours below the named folders of `root`, in order of path."""
    found = []
    for folder in folders:
        for path in sorted((root / folder).rglob("*.py")):
            if path.is_relative_to(root / NOT_OURS):
                continue
            text = path.read_text(encoding="utf-8")
            found.append(Source(path.relative_to(root).as_posix(), text.splitlines(), ast.parse(text, str(path))))
    return found
