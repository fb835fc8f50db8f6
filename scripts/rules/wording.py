"""The project speaks of itself alone: no path of somebody's machine, no package index, no word on how it came about."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

REFUSED = (
    (r"(?<![\w.~$}/-])/(?:home|root|Users|work|workspace|mnt|srv)/[\w.-]{2,}", "a path of one machine"),
    (r"--(?:extra-)?index-url|--find-links", "a package index"),
    (r"https?://[\w.-]*(?:registry|mirror|index|download|pypi|whl)[\w./-]*", "a package index or download host"),
    (
        r"(?i)\bissue #?\d|\bpull request #?\d|\bthis (?:session|agent)\b|\bAI assistant\b",
        "a word on how it came about",
    ),
    (r"\bTODO\b|\bFIXME\b|\bXXX\b|NotImplementedError|pytest\.mark\.xfail", "unfinished work"),
)
SKIPPED = ("scripts/rules/wording.py", "tests/unit/test_rules.py", "LICENSE")  # these name what is refused
TEXT = {".py", ".md", ".toml", ".yml", ".yaml", ".txt", ".html", ".css", ".sh", ".json", ""}


def check(root: Path) -> tuple[str, list[str]]:
    """Number of text files read, and each line that speaks of something else."""
    patterns = [(re.compile(pattern), what) for pattern, what in REFUSED]
    problems, count = [], 0
    for name in tracked(root):
        path = root / name
        if name.startswith(SKIPPED) or path.suffix not in TEXT or not path.is_file():
            continue
        count += 1
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
            problems += [f"{name}:{number}: {what}: {found[0]}" for p, what in patterns if (found := p.search(line))]
    return f"{count} text files", problems


def tracked(root: Path) -> list[str]:
    """Files git knows or would add; outside a repository every file."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=root, capture_output=True, text=True
    )
    if listed.returncode == 0:
        return listed.stdout.splitlines()
    return [p.relative_to(root).as_posix() for p in sorted(root.rglob("*")) if p.is_file()]
