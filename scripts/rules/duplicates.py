"""Windows of six lines that are written twice in the package: a share, so that copying shows before it hurts."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from tree import sources

WINDOW = 6
LIMIT = 0.02


def check(root: Path) -> tuple[str, list[str]]:
    """The share of windows that occur more than once; the places are named when it is over the limit."""
    places: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for source in sources(root, ("src",)):
        kept = [(number, line) for number, raw in enumerate(source.lines, 1) if (line := content(raw))]
        for start in range(len(kept) - WINDOW + 1):
            window = kept[start : start + WINDOW]
            places[tuple(line for _, line in window)].append(f"{source.path}:{window[0][0]}")
    total = sum(len(where) for where in places.values())
    twice = [where for where in places.values() if len(where) > 1]
    share = sum(len(where) for where in twice) / total if total else 0.0
    problems = [f"{' = '.join(where)}: the same {WINDOW} lines" for where in twice] if share > LIMIT else []
    return f"{share:.2%} of {WINDOW}-line windows written twice, at most {LIMIT:.0%}", problems


def content(line: str) -> str:
    """A line as it is compared: stripped; blank, comment and import lines count for nothing."""
    line = line.strip()
    return "" if line.startswith(("#", "import ", "from ")) else line
