"""The report sets each prediction beside its measurement, and says where every number is from."""

from __future__ import annotations

import json

import pytest

import report_example as example
from burnish.errors import UserError
from burnish.records import Plan, Records, read
from burnish.report import METRICS, error_percent, make_report, pair, write_report
from burnish.reported import Report


def test_error_is_relative_to_the_measurement():
    assert error_percent(110.0, 100.0) == pytest.approx(10.0)
    assert error_percent(90.0, 100.0) == pytest.approx(-10.0)
    assert error_percent(0.0, 0.0) == 0.0
    assert error_percent(5.0, 0.0) is None
    assert error_percent(None, 3.0) is None
    assert error_percent(3.0, None) is None


def test_rows_pair_by_key_in_the_order_of_the_table():
    rows = pair({"mfu": 0.5, "memory.peak": 90, "zebra": 1}, {"memory.peak": 100, "parameters": 7, "apple": 2})
    assert [row.key for row in rows] == ["parameters", "memory.peak", "mfu", "apple", "zebra"]
    peak = rows[1]
    assert (peak.predicted, peak.measured, peak.published) == (90, 100, None)
    assert peak.error_percent == pytest.approx(-10.0)
    assert rows[2].measured is None
    assert rows[2].error_percent is None
    assert rows[3].label == "apple"


def test_every_agreed_key_has_a_row_in_the_table():
    agreed = "memory.parameters memory.gradients memory.optimizer memory.saved memory.passing memory.reserve "
    agreed += (
        "memory.peak flops.step seconds.step tokens_per_second images_per_second mfu comm.count comm.bytes parameters "
    )
    agreed += "file.bytes compressed.bytes"
    assert {metric.key for metric in METRICS} == set(agreed.split())


def test_headline_figures_prefer_measured_and_name_their_source():
    measured = {f.label: f for f in make_report(example.plan(), example.records()).figures}
    assert measured["Throughput"].value == 40_394
    assert {f.source for f in measured.values()} == {"measured"}
    assert measured["Against baseline"].value == pytest.approx(100 * (2.1317 - 1.8734) / 2.1317)
    planned = {f.label: f for f in make_report(example.plan()).figures}
    assert planned["Throughput"].value == 41_800
    assert {f.source for f in planned.values()} == {"predicted"}
    assert "Unseen text" not in planned


def test_unseen_text_falls_back_to_the_last_evaluation():
    records = example.records(48).model_copy(update={"quality": {}})
    figures = {f.label: f.value for f in make_report(example.plan(), records).figures}
    assert figures["Unseen text"] == records.evals[-1].bits_per_byte
    assert "Against baseline" not in figures


def test_status_says_what_was_run():
    assert make_report(example.plan()).status == "planned"
    assert make_report(example.plan(), Records(status="partly")).status == "partly"
    assert make_report(example.plan(), example.records(12)).total_seconds == pytest.approx(142.9)


def test_both_files_are_written_and_the_json_reads_back_equal(tmp_path):
    report = make_report(example.plan(), example.records(30), recipe_yaml=example.RECIPE)
    as_json, as_html = write_report(report, tmp_path / "runs" / "quickstart")
    assert read(Report, as_json) == report
    content = json.loads(as_json.read_text())
    peak = next(row for row in content["rows"] if row["key"] == "memory.peak")
    assert peak["error_percent"] == pytest.approx(100 * (201_326_592 - 219_676_672) / 219_676_672)
    assert as_html.read_text().startswith("<!doctype html>")
    assert sorted(p.name for p in as_json.parent.iterdir()) == ["report.html", "report.json"]


def test_an_unwritable_folder_is_one_line_and_leaves_the_old_report(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("here")
    with pytest.raises(UserError, match="writable"):
        write_report(make_report(Plan(recipe="r", machine="cpu")), blocked)
    assert blocked.read_text() == "here"


def test_the_gain_over_the_baseline_has_one_sign_everywhere():
    """Fewer bits are a gain: positive in the headline as in the record."""
    quality = {"bits_per_byte": 1.5, "baseline_bits_per_byte": 2.0, "better_than_baseline_percent": 25.0}
    (figure,) = [f for f in make_report(example.plan(), Records(quality=quality)).figures if "baseline" in f.label]
    assert figure.value == quality["better_than_baseline_percent"]
    assert figure.note.startswith("better than")


def test_counts_among_the_checks_stay_whole():
    made = make_report(example.plan(), Records(checks={"tensors": 47, "weights_equal": True, "difference": 0.0}))
    assert [type(value) for value in made.checks.values()] == [int, bool, float]
    assert "47.0" not in made.model_dump_json()
