"""The score of files whose errors are known, of each kind, and of files that are none."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from published_row import published, write

from burnish import score
from burnish.errors import UserError
from burnish.rows.training import Setting
from burnish.score.blocks import kendall_tau
from burnish.score.lines import Line
from burnish.score.prices import Prices

ALWAYS = 2.0  # seconds that the stand-in for the model predicts, times tp


@pytest.fixture
def predicted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seconds of twice the tensor-parallel degree, and as many tens of GB."""

    def prices(settings: Sequence[Setting]) -> Prices:
        tp = np.array([float(s.mapping.tp) for s in settings])
        return Prices(ALWAYS * tp, 10e9 * tp, np.full(len(settings), 25e9))

    monkeypatch.setattr(score, "prices", prices)


def scored(tmp_path: Path, *rows: dict[str, str]) -> dict[str, Any]:
    return score.score(write(tmp_path / "rows.csv", *rows))


def test_errors_are_relative_to_what_was_measured(tmp_path: Path, predicted: None) -> None:
    made = scored(tmp_path, *(published(id=k, iter_time_s=t) for k, t in enumerate((4.0, 5.0, 8.0))))
    overall = made["overall"]
    assert (overall["rows"], overall["expressed"]) == (3, 3)
    assert overall["time_median_pct"] == pytest.approx(20)
    assert overall["time_mean_pct"] == pytest.approx((0 + 20 + 50) / 3, abs=1e-3)
    assert overall["time_worst_pct"] == pytest.approx(50)
    assert overall["memory_mean_pct"] is None


def test_sources_are_told_apart_and_second_hand_ones_kept_apart(tmp_path: Path, predicted: None) -> None:
    made = scored(
        tmp_path,
        published(id="a", source="one", iter_time_s=4),
        published(id="b", source="two", iter_time_s=8),
        published(id="c", source="three as quoted by four", iter_time_s=40),
    )
    assert {name: row["time_mean_pct"] for name, row in made["sources"].items()} == {"one": 0, "two": 50}
    assert made["overall"]["rows"] == 2
    assert made["second_hand"]["time_mean_pct"] == 90
    assert list(made["second_hand"]["ids"]) == ["c"]


def test_a_row_the_lint_refutes_is_kept_apart_with_its_reason(tmp_path: Path, predicted: None) -> None:
    made = scored(tmp_path, published(id="good", iter_time_s=4), published(id="bad", global_batch=63))
    assert made["overall"]["rows"] == 1
    assert "does not divide" in made["distrusted"]["ids"]["bad"]
    assert [(row["id"], row["kind"]) for row in made["lint"]] == [("bad", "impossible")]


def test_memory_and_fit(tmp_path: Path, predicted: None) -> None:
    made = scored(
        tmp_path,
        published(id="a", peak_mem_gb=25),
        published(id="b", peak_mem_gb=16),
        published(id="c", outcome="oom", iter_time_s="", peak_mem_gb=79),
        published(id="d", outcome="oom", iter_time_s="", tp=4, dp=2),
    )["overall"]
    assert made["memory_mean_pct"] == pytest.approx(22.5)
    assert made["memory_median_mb"] == pytest.approx(4500)
    assert (made["fit_right"], made["fit_wrong"]) == (3, 1)


def test_order_and_regret_within_a_job(tmp_path: Path, predicted: None) -> None:
    rows = [published(id=f"j{tp}", tp=tp, dp=8 // tp, iter_time_s=t) for tp, t in ((1, 3.3), (2, 3.0), (4, 9.0))]
    alone = published(id="alone", global_batch=128, iter_time_s=1)
    overall = scored(tmp_path, *rows, alone)["overall"]
    assert overall["regret_pct"] == pytest.approx(10)
    assert overall["kendall_tau"] == pytest.approx(1 / 3, abs=1e-3)


def test_what_cannot_be_expressed_is_listed_and_counted(tmp_path: Path, predicted: None) -> None:
    made = scored(tmp_path, published(id="a"), published(id="b", gpu="TPU v5p"), published(id="c", n_gpus="x"))
    assert [row["id"] for row in made["not_expressed"]] == ["b", "c"]
    assert (made["overall"]["rows"], made["overall"]["expressed"]) == (3, 1)


def test_a_file_in_which_nothing_can_be_expressed_has_no_figures(tmp_path: Path, predicted: None) -> None:
    overall = scored(tmp_path, published(gpu="abacus"))["overall"]
    assert (overall["rows"], overall["expressed"], overall["time_mean_pct"]) == (1, 0, None)


def test_means_over_sources_and_over_named_groups(tmp_path: Path, predicted: None) -> None:
    many = [published(id=f"m{k}", source="mosaicml/llm-foundry", iter_time_s=5) for k in range(9)]
    few = [published(id=f"f{k}", source="few", iter_time_s=8) for k in range(8)]
    overall = scored(tmp_path, *many, *few)["overall"]
    assert (overall["sources_counted"], overall["mean_over_sources_pct"]) == (1, pytest.approx(20))
    assert overall["subsets"]["llm-foundry"] == {"rows": 9, "time_mean_pct": pytest.approx(20), "aim_pct": 5}


def test_test_runs_count_as_close_by_megabytes_or_percent() -> None:
    labels = (("source", "tests"), ("family", "gpt"), ("layers", "engine"))
    bytes_of = {"near": (1.03e9, 1e9), "small": (9e7, 1e8), "far": (1.05e9, 1e9)}
    lines = [Line(id=name, source="tests", labels=labels, allocated=pair) for name, pair in bytes_of.items()]
    lines.append(Line(id="odd", source="tests", labels=labels, why_not="an encoder"))
    overall = score.record(lines, [])["overall"]
    dense = overall["memory_groups"]["dense, Transformer Engine"]
    assert (dense["rows"], dense["within_pct"], dense["beyond"]) == (3, pytest.approx(66.67), ["far"])
    assert overall["memory_mean_pct"] == pytest.approx((3 + 10 + 5) / 3, abs=1e-3)
    assert overall["memory_median_mb"] == 30


@pytest.mark.parametrize("content", ["", "a,b\n1,2\n", "id,model,gpu\n1,x,y\n"])
def test_a_file_of_no_known_kind_is_refused_in_one_line(tmp_path: Path, content: str) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(UserError) as caught:
        score.score(path)
    assert "\n" not in str(caught.value)


def test_text_stays_within_a_hundred_columns_and_json_is_json(tmp_path: Path, predicted: None) -> None:
    path = write(tmp_path / "rows.csv", published(), published(id="x", gpu="TPU" * 40), published(id="y", heads=25))
    lines = list(score.shown(path, each=True, assumed=True))
    assert max(map(len, lines)) <= 100
    assert any("not expressed: 1" in line for line in lines)
    record = json.loads("".join(score.shown(path, as_json=True, each=True)))
    assert set(record) >= {"overall", "sources", "second_hand", "distrusted", "not_expressed", "lint", "rows"}


def test_the_real_model_prices_a_row(tmp_path: Path) -> None:
    overall = scored(tmp_path, published(peak_mem_gb=40))["overall"]
    assert overall["time_mean_pct"] < 400
    assert overall["memory_mean_pct"] < 400


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=2, max_size=12))
def test_kendall_tau_counts_pairs(pairs: list[tuple[int, int]]) -> None:
    a, b = np.array(pairs, dtype=float).T
    tau = kendall_tau(a, b)
    agreeing = both = first = second = 0
    for i in range(len(pairs)):
        for j in range(i):
            x, y = np.sign(a[i] - a[j]), np.sign(b[i] - b[j])
            agreeing, both, first, second = agreeing + x * y, both + 1, first + abs(x), second + abs(y)
    if not first or not second:
        assert tau is None
    else:
        assert tau == pytest.approx(agreeing / np.sqrt(first * second))
