"""The page of a plan as text: its numbers are those of the record, all of it escaped, nothing fetched, colours apart."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest

import report_example as example
from burnish.plan_bars import stages_of
from burnish.plan_page import page
from burnish.plan_schedule import Pipeline, shortened
from burnish.plan_timeline import pipeline_of, scale, waited
from page_elements import Elements, assert_nothing_is_fetched, colors_of, contrast

FIXTURES = Path(__file__).parents[1] / "fixtures"


def plan(name: str = "plan") -> dict[str, Any]:
    """A plan record as `burnish plan --json` prints it."""
    return json.loads((FIXTURES / f"{name}.json").read_text(encoding="utf-8"))


def plain(markup: str) -> str:
    """The words of a page."""
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", markup.replace("\u00a0", " ")))


def hostile(value: Any) -> Any:
    """A record whose every text, and every name of a cause or kind, is an attack; what decides the drawing is kept."""
    if isinstance(value, dict):
        kept = ("schedule", "label")
        free = ("parts", "memory_gib", "asked", "fixed")
        return {
            key: {example.HOSTILE + name: number for name, number in inner.items()}
            if key in free and isinstance(inner, dict) and not any(isinstance(part, dict) for part in inner.values())
            else inner
            if key in kept
            else hostile(inner)
            for key, inner in value.items()
        }
    if isinstance(value, list):
        return [hostile(inner) for inner in value]
    return example.HOSTILE if isinstance(value, str) else value


def test_a_plan_has_every_part_once():
    expected = "Memory by stage|One step|Time by cause|Why this mapping|Alternatives|Time against memory|Why not"
    expected += "|States by ZeRO stage|Question|Ignored|Assumptions and sources"
    assert Elements(page(plan())).headings == ["llama-3-70b", *expected.split("|")]


def test_the_pick_is_told_with_its_numbers_and_where_they_are_from():
    made, record = page(plan()), plan()
    words = plain(made)
    assert f"{record['pick']['words']} {record['pick']['reason']}" in words.replace("&#x27;", "'")
    for text in (
        "26.6 s predicted",
        "78,731 tokens/s predicted",
        "55.9 % predicted",
        "77.7 GiB predicted · 97.6 % of 79.6 GiB",
    ):
        assert text in words
    assert "uncalibrated" not in words


def test_times_of_a_chip_without_measured_steps_are_marked():
    record = plan() | {"uncalibrated": True}
    words = plain(page(record))
    assert words.count("predicted · uncalibrated") == 3
    assert f"No measured step of {record['cluster']['chip']}" in words


def test_where_nothing_fits_the_page_says_what_stands_in_the_way_and_what_would_fit():
    record = plan("plan_nothing_fits")
    made = page(record)
    headings = Elements(made).headings
    assert headings[1:4] == ["What stands in the way", "What would fit", "Memory of the nearest"]
    assert "One step" not in headings
    words = plain(made)
    assert record["alternatives"][0]["reason"] in words
    for remedy in record["would_fit"]:
        assert f"{remedy['change']} {remedy['words']}" in words


def test_a_plan_without_remedies_and_without_a_known_memory_has_a_page():
    record = plan("plan_nothing_fits") | {"would_fit": []}
    assert "No change of one kind" in page(record)
    unknown = plan()
    unknown["cluster"]["memory_gib"] = None
    assert "capacity" not in plain(page(unknown))


@pytest.mark.parametrize("name", ["plan", "plan_nothing_fits"])
def test_bars_add_up_to_the_memory_that_is_told(name):
    record = plan(name)
    for choice in (record["pick"], *record["alternatives"]):
        if choice:
            sums = {stage: sum(size for _, size in kinds) for stage, kinds in stages_of(choice)}
            assert max(sums.values()) == pytest.approx(choice["memory_gib"], rel=1e-4)
            assert sums[choice["fullest_stage"]] == max(sums.values())


def test_widths_of_a_bar_are_shares_of_its_stage():
    record = plan()
    made = page(record)
    track = made[made.index('<span class="track"><i class="is-parameters"') :]
    widths = [float(width) for width in re.findall(r"width:([\d.]+)%", track[: track.index("</span>")])]
    edge = float(re.search(r"--edge:([\d.]+)%", made)[1])
    assert sum(widths) / edge == pytest.approx(record["pick"]["memory_gib"] / record["cluster"]["memory_gib"], rel=1e-3)


@pytest.mark.parametrize("name", ["plan", "plan_nothing_fits"])
def test_every_text_is_escaped(name):
    made = page(hostile(plan(name)))
    assert "alert(1)" in made
    assert "<script" not in made
    assert Elements(made).tags.count("style") == 1


@pytest.mark.parametrize("name", ["plan", "plan_nothing_fits"])
def test_nothing_is_fetched_and_no_script_is_there(name):
    made = page(plan(name))
    assert_nothing_is_fetched(made)
    assert "script" not in Elements(made).tags
    assert '<html lang="en">' in made


def test_pictures_have_words_for_those_who_do_not_see_them():
    made = page(plan())
    assert made.count('role="img"') == made.count("<desc>") == 2
    pipeline = pipeline_of(plan()["pick"]["pipeline"])
    assert f"Each stage works 25.3 s and waits {1000 * waited(pipeline):.0f} ms." in plain(made)
    assert "activations 41.9 GiB" in plain(made)


def test_the_wait_that_is_told_is_that_of_all_micro_batches():
    for stages, chunks, many in ((4, 1, 64), (4, 2, 64), (1, 1, 5), (8, 1, 3)):
        pipeline = Pipeline(stages, chunks, many, 1.0, 2.0)
        assert waited(pipeline) == pytest.approx((stages - 1) * 3 / chunks)


def test_the_axis_is_true_outside_its_breaks_and_ends_where_the_step_does():
    line = shortened(Pipeline(4, 1, 400, 1.0, 2.0))
    place = scale(line.cuts, line.seconds)
    (low, high), total = line.cuts[0], line.seconds
    assert place(0.0) == 0.0
    assert place(total) == pytest.approx(1000.0)
    assert place(low) / low == pytest.approx((place(total) - place(high)) / (total - high))
    assert place(low) < place((low + high) / 2) < place(high) < place(low) + 50


def test_what_had_no_effect_is_named():
    record = copy.deepcopy(plan())
    record["ignored"] = [{"option": "--fix vpp", "why": "one pipeline stage has no chunks"}]
    assert "--fix vpp : one pipeline stage has no chunks" in plain(page(record))
    assert "no option was without effect" in page(plan())


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_kinds_stand_out_from_the_page_and_numbers_from_their_passes(theme):
    common, kinds = colors_of("page.css", theme), colors_of("plan_page.css", theme)
    assert len(kinds) == 8
    for name, color in kinds.items():
        for ground in ("page", "track"):
            assert contrast(color, common[ground]) >= 3, f"{name} on {ground}"
    for name in ("kind-1", "kind-4"):
        assert contrast(kinds[name], common["page"]) >= 4.5, name


def test_the_name_of_the_capacity_stays_on_the_page_where_memory_is_far_over():
    record = plan("plan_nothing_fits")
    assert 'class="edge early"' not in page(plan())
    record["cluster"]["memory_gib"] = record["alternatives"][0]["memory_gib"] / 6
    assert 'class="edge early"' in page(record)
