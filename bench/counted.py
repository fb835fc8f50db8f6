"""Counted: run tests and count what became of them, for benches whose figure is a number of tests."""

from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

ROOT = Path(__file__).parents[1]


def run_tests(name: str, *arguments: str) -> tuple[int, int]:
    """(tests run, tests that failed or were skipped) of a pytest call; `name` names the file of its result."""
    result = ROOT / "bench" / "scratch" / f"{name}.xml"
    result.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run([sys.executable, "-m", "pytest", "-q", *arguments, f"--junitxml={result}"], cwd=ROOT, check=False)
    suite = ElementTree.parse(result).getroot()[0].attrib
    return int(suite["tests"]), sum(int(suite[kind]) for kind in ("failures", "errors", "skipped"))
