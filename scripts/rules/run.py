"""Run the rules of this repository: one line each with its figure, and what breaks it below."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import bounds
import documents
import duplicates
import imports
import wording

RULES = {
    "imports": imports.check,
    "bounds": bounds.check,
    "duplicates": duplicates.check,
    "documents": documents.check,
    "wording": wording.check,
}


def main(root: Path, names: list[str]) -> int:
    """Exit code 1 when a rule is broken."""
    failed = False
    for name in names or list(RULES):
        start = time.monotonic()
        figure, problems = RULES[name](root)
        print(f"{name + ':':<12}{figure} ({time.monotonic() - start:.1f} s)", flush=True)
        for problem in problems:
            print(f"  {problem}", flush=True)
        failed = failed or bool(problems)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(Path(__file__).resolve().parents[2], sys.argv[1:]))
