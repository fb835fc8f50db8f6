"""The check of a CUDA machine where there is none: it says so, and everything that it measures runs on the CPU, tiny."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))

import gpu_allocator  # noqa: E402
import gpu_attention  # noqa: E402
import gpu_check  # noqa: E402
import gpu_decoder  # noqa: E402
import gpu_fp8  # noqa: E402
from gpu_row import Row, off  # noqa: E402

SHAPE = gpu_decoder.MODEL.model_copy(
    update={"vocab": 61, "hidden": 32, "ffn": 48, "heads": 4, "kv_heads": 2, "layers": 2, "head_dim": 8}
)
TINY = {
    "decoder": partial(gpu_decoder.check, shape=SHAPE, segments=((9, 14), (23,))),
    "fp8": partial(gpu_fp8.check, tokens=32, layers={"small": (48, 64)}),
    "attention": partial(gpu_attention.check, name="tiled", lengths=(64,), dims=(16,), heads=(2, 1)),
    "allocator": partial(gpu_allocator.check, batches=2, longest=64),
}


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_cuda_it_says_so_in_one_line(tmp_path: Path) -> None:
    ran = subprocess.run([ROOT / "scripts" / "gpu_check", "--out", tmp_path / "x"], capture_output=True, text=True)
    assert ran.returncode == 2
    assert ran.stderr == "gpu_check: no CUDA device was found here; run it on a machine that has one\n"
    assert ran.stdout == ""
    assert not (tmp_path / "x").exists()


def test_every_section_runs_and_its_table_is_written(tmp_path: Path) -> None:
    assert TINY.keys() == gpu_check.SECTIONS.keys()
    rows, notes = gpu_check.collect(TINY, "cpu")
    assert notes == []
    assert all(math.isfinite(row.measured) for row in rows)
    found = json.loads(gpu_check.write(tmp_path, rows, notes, "a chip").read_text())
    assert len(found["rows"]) == len(rows)
    assert found["chip"] == "a chip"
    assert {row.section for row in rows} == {"bf16 decoder", "FP8", "attention", "allocator"}
    assert (tmp_path / "gpu_check.md").read_text().count("\n| ") == len(rows) + 1
    errors = [row for row in rows if row.what.startswith("error")]
    assert all(row.beside is not None and row.measured > 0 for row in errors)
    for row in errors:
        if row.section != "FP8":  # the kernels are no worse than what they stand beside
            assert row.measured <= 2 * row.beside, row


def test_fp8_products_round_as_the_format_does() -> None:
    """e4m3 keeps 3 bits behind the point: a value is off by up to 1/16, a third of that as a root mean square."""
    x, w = (torch.randn(n, 64, generator=torch.Generator().manual_seed(n)) for n in (32, 48))
    exact = x.double() @ w.double().t()
    errors = {formats: off(gpu_fp8.scaled(x, w, formats), exact) for formats in gpu_fp8.PRODUCTS.values()}
    assert 0.02 < errors[gpu_fp8.E4M3, gpu_fp8.E4M3] < 0.05
    assert errors[gpu_fp8.E5M2, gpu_fp8.E4M3] > 1.3 * errors[gpu_fp8.E4M3, gpu_fp8.E4M3]


def test_a_section_that_fails_keeps_its_rows_and_the_others() -> None:
    def fails(device: str) -> Iterator[Row]:
        yield Row("a", "b", "c", 1.0, "s")
        raise RuntimeError("no such kernel\nmore")

    rows, notes = gpu_check.collect({"first": fails, "second": fails}, "cpu")
    assert len(rows) == 2
    assert notes == ["first: RuntimeError: no such kernel", "second: RuntimeError: no such kernel"]
    rows, notes = gpu_check.collect({"first": fails}, "cpu", limit=0.0)
    assert (len(rows), notes) == (1, ["first: stopped after 0 s"])


def test_lengths_are_the_same_for_every_backend() -> None:
    assert gpu_allocator.lengths(5, 8192) == gpu_allocator.lengths(5, 8192)
    found = gpu_allocator.lengths(300, 8192)
    assert max(found) == 8192
    assert sorted(found)[150] < 2048
