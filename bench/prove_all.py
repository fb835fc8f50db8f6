"""All claims, measured twice by `burnish prove --json`: seconds of each, and whether both said the same. prove_all.json."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from record import record

COMMAND = [str(Path(sys.executable).parent / "burnish"), "prove", "--json"]
TIMES = 2
LIMIT = 900  # seconds of one pass, far over its bar


def run() -> tuple[int, float, list[dict[str, Any]]]:
    """Exit code, wall seconds and verdicts of one pass."""
    began = time.perf_counter()
    with TemporaryDirectory() as scratch:
        done = subprocess.run(COMMAND, cwd=scratch, stdout=subprocess.PIPE, text=True, timeout=LIMIT, check=False)
    return done.returncode, time.perf_counter() - began, json.loads(done.stdout)


def verdicts_of(found: list[dict[str, Any]]) -> dict[str, bool]:
    """Whether each claim held."""
    return {verdict["claim"]: verdict["holds"] for verdict in found}


def main() -> None:
    """Run, compare, record."""
    passes = [run() for _ in range(TIMES)]
    first, *others = (verdicts_of(found) for _, _, found in passes)
    values: dict[str, Any] = {
        "claims": len(first),
        "seconds": max(seconds for _, seconds, _ in passes),
        "not_held": sum(not holds for _, _, found in passes for holds in verdicts_of(found).values()),
        "verdicts_changed": sum(first.items() != other.items() for other in others),
        "exit_codes": [code for code, _, _ in passes],
    }
    values |= {f"{verdict['claim']}.seconds": verdict["seconds"] for verdict in passes[-1][2]}
    values["measured"] = {verdict["claim"]: verdict["measured"] for verdict in passes[-1][2]}
    print(record("prove_all", values), values)


if __name__ == "__main__":
    main()
