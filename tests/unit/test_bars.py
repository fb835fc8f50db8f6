"""The table of bars: what counts as met, what a missing result looks like, and names that results really have."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))

import bars  # noqa: E402


def bar(low=None, high=None):
    return bars.Bar("g", "t", "r", "v", "bench/r.py", low, high)


@pytest.mark.parametrize(
    ("low", "high", "text", "met", "missed"),
    [
        (None, 0.7, "<= 0.7", 0.7, 0.70001),
        (1.0, None, ">= 1", 1.0, 0.99999),
        (0, 0, "= 0", 0, 1),
        (1.15, 1.4, "1.15 to 1.4", 1.2, 1.5),
    ],
)
def test_bars_in_words_and_at_their_edges(low, high, text, met, missed):
    assert bar(low, high).bar == text
    assert bar(low, high).met_by(met)
    assert not bar(low, high).met_by(missed)


def test_results_are_read_missed_and_missing_ones_are_said(tmp_path):
    (tmp_path / "train_vs_transformers.json").write_text(
        json.dumps({"values": {"memory_ratio": 0.71, "speed_ratio": 1.2}})
    )
    table, missed = bars.lines("spine", tmp_path)
    row = {line.split(" | ")[0].strip(): line for line in table}
    assert missed == 1
    assert row["training against the Hugging Face Trainer: peak memory"].endswith("MISSED")
    assert "0.71 x | <= 0.7" in row["training against the Hugging Face Trainer: peak memory"]
    assert not row["training against the Hugging Face Trainer: tokens/s"].endswith("MISSED")
    assert "not measured" in row["burnish --help"]
    assert bars.lines(None, tmp_path)[1] == 1


def test_every_result_in_the_repository_has_the_values_its_bars_ask_for():
    for row in bars.BARS:
        path = bars.RESULTS / f"{row.result}.json"
        if path.is_file() and row.bar != "shown":
            assert bars.read(row) is not None, f"{path.name} lacks {row.value}"
            assert (ROOT / row.command.split()[0]).is_file(), row.command
