"""The part of a report on compression: figures with their noise, the verdict, a bar a part; everything escaped, on a phone too."""

from __future__ import annotations

import pytest

import report_example as example
from browser import DARK, NEEDED, look
from burnish.page import render
from burnish.report import make_report
from burnish.verified import Cost, Judged, Part, Verified
from burnish.verified_part import compression, drop_of
from page_elements import Elements, assert_nothing_is_fetched

NBSP, MINUS = "\u00a0", "\u2212"


def judged(**more) -> Judged:
    base = {"name": "perplexity", "lower_is_better": True, "baseline": 28.5, "compressed": 29.1, "drop": 2.1}
    return Judged(**(base | {"unit": "percent", "noise": 0.4, "pieces": 31, "max_drop": 1.0} | more))


def verified(count: int = 60, **more) -> Verified:
    own = [
        Part(
            name=f"layers.{k // 2}.{('attention', 'mlp')[k % 2]}",
            divergence=0.001 * (k % 7 + 1),
            bytes_saved=70_000,
            kept=k == 3,
        )
        for k in range(count)
    ]
    base = {
        "model": "smollm2",
        "techniques": ("prune", "awq"),
        "settings": {"awq": "group=64", "prune": ""},
        "judged": judged(),
        "costs": (
            Cost(key="file.bytes", label="Weights on disk", unit="bytes", baseline=2e8, compressed=1e8, predicted=1e8),
        ),
        "agreement": {"KL divergence": 0.0123, "same likeliest": 0.93},
        "parts": tuple(own),
    }
    return Verified(**(base | more))


def page(found: Verified) -> str:
    return render(make_report(example.plan(), example.records().model_copy(update={"verified": found})))


def test_a_change_stands_with_its_noise_and_the_sign_of_the_figure():
    assert drop_of(judged()) == f"+2.10{NBSP}% \u00b1{NBSP}0.40"
    worse = judged(lower_is_better=False, unit="points", noise=None)
    assert drop_of(worse) == f"{MINUS}2.10{NBSP}points"


def test_the_worst_parts_are_drawn_and_all_stand_as_numbers():
    found = page(verified())
    elements = Elements(found)
    assert "Compression" in elements.headings
    assert found.count('<tr><th scope="row">layers.') == 60
    assert "the worst 24 of 60" in found
    assert found.count("<dt>layers.") == 24
    assert "failed" in found
    assert "kept as they were: layers.1.mlp" in found
    assert "prune + awq (group=64)" in found
    assert_nothing_is_fetched(found)
    assert compression(None) is None


def test_names_are_escaped_and_nothing_is_said_of_parts_nobody_looked_at():
    bad = example.HOSTILE
    found = page(verified(model=bad, judged=judged(name=bad, max_drop=None), agreement={bad: 1.0}, parts=()))
    assert "<script>alert" not in found
    assert "part alone" not in found
    assert "at most" not in found


def test_harm_that_is_no_number_still_makes_a_page():
    parts = (Part(name="a", divergence=0.0), Part(name="b", divergence=0.0))
    assert "Divergence when one part alone" in page(verified(parts=parts))


@NEEDED
@pytest.mark.parametrize(("width", "options"), [(320, []), (390, [DARK]), (1280, [])])
def test_the_part_fits_a_phone(tmp_path, width, options):
    found = verified(model="Donaudampfschifffahrt" * 9, notes=("Donaudampfschifffahrt" * 9,))
    seen = look(page(found), tmp_path, width, *options)
    assert seen["scroll"] <= width, seen["wide"]
    assert seen["console"] == []
    assert seen["requests"] == []
