"""How many of the bad inputs are answered with one line and exit code 2: bench/results/bad_inputs.json."""

from __future__ import annotations

from counted import run_tests
from record import record

if __name__ == "__main__":
    count, wrong = run_tests("bad_inputs", "tests/cli/test_bad_inputs.py::test_one_line_and_exit_code_2")
    print(record("bad_inputs", {"answered": count - wrong, "wrong": wrong}))
