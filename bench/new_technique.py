"""Pieces that the docs' example technique consists of, when its own test holds: bench/results/new_technique.json."""

from __future__ import annotations

import sys

from counted import ROOT, run_tests
from record import record

sys.path.insert(0, str(ROOT / "tests" / "law"))
from test_documented_technique import blocks

if __name__ == "__main__":
    tests, wrong = run_tests("new_technique", "tests/law/test_documented_technique.py")
    values = {"pieces": len(blocks()) if not wrong else 99, "tests": tests, "wrong": wrong}
    print(record("new_technique", values), values)
