"""The Triton kernels without a GPU: through Triton's interpreter against float64, and compiled ahead of time for sm_90."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")
from flash_cases import CASES, CHEAP

TESTS = Path(__file__).parents[1]
BAR = 2.0
FORMATS = ("float32", "bfloat16", "float16")
EVERY = [f"{name} in {dtype}" for name in CASES for dtype in FORMATS]
FEW = [f"{name} in {FORMATS[number % 3]}" for number, name in enumerate(CHEAP)]


def interpreted(wanted: list[str], broken: str = "") -> dict[str, dict[str, tuple[float, float]]]:
    """Errors of each case, found in a process of its own: kernels are made for the interpreter or for a chip."""
    environment = os.environ | {"TRITON_INTERPRET": "1"} | ({"FLASH_BROKEN": broken} if broken else {})
    command = [sys.executable, "-W", "ignore", str(TESTS / "flash_cases.py"), *wanted]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def check(wanted: list[str], broken: str = "") -> None:
    """The named check: every tensor of every case within the bar."""
    found = interpreted(wanted, broken)
    assert sorted(found) == sorted(wanted)
    for case, errors in found.items():
        assert max(mine / control for mine, control in errors.values()) <= BAR, (case, errors)


def test_kernels_are_as_near_to_float64_as_plain_attention() -> None:
    check(FEW)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_kernels_are_as_near_to_float64_as_plain_attention_in_every_case() -> None:
    check(EVERY)


@pytest.mark.parametrize("kernel", ["forward_kernel", "queries_kernel", "keys_kernel"])
def test_kernels_compile_for_a_chip_that_is_not_here(kernel: str) -> None:
    from burnish.ops.triton_ahead import compiled

    found = compiled(kernel, 64, torch.bfloat16)
    print(found)
    assert found.code > 10_000
    assert 32 < found.registers <= 255
    assert found.stack == 0, "registers were spilled"
    assert found.shared <= 227 * 1024


@pytest.mark.sabotage
def test_a_running_sum_that_is_not_rescaled_is_noticed() -> None:
    with pytest.raises(AssertionError):
        check(["all keys in float32"], "total * shrink=>total")
