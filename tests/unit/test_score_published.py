"""The score of the published rows stays within its bars: what a change of the time model must not lose."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "bench"))

import bars  # noqa: E402
import score_rows  # noqa: E402
from burnish.score import score  # noqa: E402

ROWS = score_rows.BESIDE / score_rows.ROWS
OURS = [bar for bar in bars.BARS if bar.result == "score_rows" and bar.bar != "shown"]


@pytest.fixture(scope="module")
def figures() -> dict[str, float]:
    if not ROWS.is_file():
        pytest.skip("the table of published training rows is not beside this checkout")
    return score_rows.figures(score(ROWS))


@pytest.mark.parametrize("bar", OURS, ids=lambda bar: bar.value)
def test_within_its_bar(bar: bars.Bar, figures: dict[str, float]) -> None:
    assert bar.met_by(figures[bar.value]), f"{bar.title}: {figures[bar.value]:.3f}, bar {bar.bar}"


def test_every_group_of_the_table_has_rows(figures: dict[str, float]) -> None:
    assert {f"{name}_percent" for name in score_rows.GROUPS} <= set(figures)
    assert figures["sources_counted"] >= 11
    assert figures["timed"] > 2500
