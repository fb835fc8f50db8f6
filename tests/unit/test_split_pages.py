"""The tables of the pages on split work: each predicted figure is computed here and must stand on its page."""

from __future__ import annotations

from dataclasses import replace as replaced
from pathlib import Path

import pytest
from split_work import layer, parameters

from burnish import apply
from burnish.describe import describe
from burnish.mesh import Mesh
from burnish.presets import architecture_of
from burnish.recipe import replace
from burnish.recipe_files import load
from burnish.shapes import Shapes, shapes_of
from burnish.techniques import experts
from burnish.units import show
from burnish.work import Bytes, Work, fold, saved_bytes, state_bytes

PAGES = Path(__file__).parents[2] / "docs" / "techniques"


def ranks(micro_batches: int = 1, **parallel: object) -> list[Work]:
    """Llama 3 8B in bf16, micro batches of one row of 8,192 tokens: the work of the first rank of each stage."""
    plain = {"parallel.dp": 1, "parallel.zero": 0, "memory.checkpointing": "none", "train.micro_batch": 1}
    changes = {f"parallel.{key}": value for key, value in parallel.items()}
    recipe = replace(load("llama3-8b-h100"), plain | {"train.global_batch": micro_batches} | changes)
    work = describe(recipe.model, shapes_of(recipe))
    return [apply.predict(recipe, work, rank)[0] for rank in apply.stage_ranks(recipe)]


def sent(work: Work, axis: str) -> tuple[int, int]:
    """Calls and bytes of one step."""
    seen = fold(work)
    return tuple(
        sum(n for key, n in seen.items() if key[0] == metric and key[2] == axis)
        for metric in ("comm_count", "comm_bytes")
    )


def line(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def billion(count: int) -> str:
    return f"{count / 1e9:.3f}"


def size(count: float) -> str:
    return show(count, "bytes") if count else "0"


def tensor_rows() -> list[str]:
    rows = []
    for tp, sequence in ((1, False), (2, True), (4, True), (8, True), (8, False)):
        (work,) = ranks(tp=tp, sequence=sequence)
        calls, moved = sent(work, "tp")
        split = "yes" if sequence else "no"
        rows.append(line(tp, split, billion(parameters(work)), size(saved_bytes(work)), f"{calls:,}", size(moved)))
    return rows


def context_rows() -> list[str]:
    rows = []
    for cp in (1, 2, 4, 8):
        (work,) = ranks(cp=cp)
        calls, moved = sent(work, "cp")
        rows.append(line(cp, billion(parameters(work)), size(saved_bytes(work)), f"{calls:,}", size(moved)))
    return rows


def pipeline_rows() -> list[str]:
    rows = []
    for stage, work in enumerate(ranks(16, pp=4)):
        saved = size(work.flight * saved_bytes(work))
        calls, moved = sent(work, "pp")
        own = layer(work).layers
        rows.append(line(stage, own, billion(parameters(work)), work.flight, saved, calls, size(moved)))
    return rows


def experts_rows() -> list[str]:
    model = architecture_of("mixtral-8x7b")
    plain = replaced(describe(model, Shapes(1, 4096)), bytes=Bytes(parameter=2, compute=2, activation=2))
    rows = []
    for ep in (1, 2, 4, 8):
        work = experts.predict(experts.Config(), plain, Mesh(dp=8, ep=ep))
        calls, moved = sent(work, "ep")
        rows.append(line(ep, billion(parameters(work)), size(state_bytes(work)["parameter"]), calls, size(moved)))
    return rows


ROWS = {"tensor": tensor_rows, "context": context_rows, "pipeline": pipeline_rows, "experts": experts_rows}


@pytest.mark.parametrize("page", ROWS)
def test_the_page_shows_what_is_predicted(page):
    text = (PAGES / f"{page}.md").read_text(encoding="utf-8").splitlines()
    assert [row for row in ROWS[page]() if row not in text] == []
