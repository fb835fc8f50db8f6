"""How many of the bad inputs are answered with one line and exit code 2: bench/results/bad_inputs.json."""

from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from record import record

ROOT = Path(__file__).parents[1]
RESULT = ROOT / "bench" / "work" / "bad_inputs.xml"

if __name__ == "__main__":
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    tests = "tests/cli/test_bad_inputs.py::test_one_line_and_exit_code_2"
    subprocess.run([sys.executable, "-m", "pytest", "-q", tests, f"--junitxml={RESULT}"], cwd=ROOT, check=False)
    suite = ElementTree.parse(RESULT).getroot()[0].attrib
    wrong = sum(int(suite[kind]) for kind in ("failures", "errors", "skipped"))
    print(record("bad_inputs", {"answered": int(suite["tests"]) - wrong, "wrong": wrong}))
