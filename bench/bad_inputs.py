"""How many of the bad inputs are answered with one line and exit code 2: bench/results/bad_inputs.json."""

from __future__ import annotations

from counted import run_tests
from record import record

# Bad inputs of every verb, and those of planning a model: chips, models, degrees that do not divide.
TESTS = {"": "tests/cli/test_bad_inputs.py", "planner_": "tests/cli/test_plan_bad_inputs.py"}

if __name__ == "__main__":
    values = {}
    for name, file in TESTS.items():
        count, wrong = run_tests(f"{name}bad_inputs", f"{file}::test_one_line_and_exit_code_2")
        values |= {f"{name}answered": count - wrong, f"{name}wrong": wrong}
    print(record("bad_inputs", values), values)
