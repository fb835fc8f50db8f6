"""Tables of the docs are those that constants and recorded results make; the page on time names each constant."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from burnish.rates import constants

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "bench"))

import page_tables  # noqa: E402

PAGES = page_tables.pages()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_tables_are_up_to_date(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert page_tables.filled(text) == text, f"{page.name}: run bench/page_tables.py"


def test_the_page_on_time_has_every_constant_once() -> None:
    text = (ROOT / "docs" / "timing.md").read_text(encoding="utf-8")
    names = re.findall(r"^\| `([\w.-]+)` \| [\d.e+-]+ \|", text, re.M)
    assert names == list(constants())
    pages = {"README.md", "timing.md", "score.md", "encoders.md", "compress.md", "comparison.md", "vision.md"}
    assert {page.name for page in PAGES} >= pages


def test_a_block_is_replaced_and_what_surrounds_it_stays() -> None:
    page = "before\n<!-- table folds -->\nstale row\n<!-- end -->\nafter\n"
    new = page_tables.filled(page)
    assert new.startswith("before\n<!-- table folds -->\n\n| constants")
    assert new.endswith("\n\n<!-- end -->\nafter\n")
    assert "stale row" not in new
    assert page_tables.filled(new) == new
