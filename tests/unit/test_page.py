"""The page of a report as text: everything escaped, nothing fetched, absent parts left out, colours readable."""

from __future__ import annotations

import pytest

import report_example as example
from burnish.markup import Html, el
from burnish.page import render
from burnish.records import Pass, Plan, Records, Sample, SavedFile
from burnish.report import make_report
from page_elements import Elements, assert_nothing_is_fetched, colors_of, contrast


def full_page(steps: int = 60) -> str:
    return render(make_report(example.plan(), example.records(steps), recipe_yaml=example.RECIPE))


def test_a_full_report_has_every_part_once():
    headings = Elements(full_page()).headings
    expected = "quickstart Loss|Memory by kind|Predicted and measured|Passes|Time by stage|Sample text|Quality|"
    expected += "Exported files|Checks|Notes|Recipe|Machine|Versions"
    assert headings == ["quickstart", *expected.removeprefix("quickstart ").split("|")]


def test_a_plan_alone_shows_only_what_it_has():
    page = Elements(render(make_report(Plan(recipe="llama3-8b-h100", machine="8 x H100", predicted={"mfu": 0.4}))))
    assert page.headings == ["llama3-8b-h100", "Predicted and measured", "Machine"]


def test_a_run_that_stopped_early_says_so():
    page = render(make_report(example.plan(), Records(status="partly", notes=("stopped at step 3",))))
    assert "partly done" in page
    assert "stopped at step 3" in page


def test_every_text_of_a_user_is_escaped():
    bad = example.HOSTILE
    plan = Plan(
        recipe=bad,
        machine=bad,
        passes=(Pass(technique=bad, reason=bad),),
        mapping={bad: bad},
        predicted={bad: 1.0},
        notes=(bad,),
    )
    records = Records(
        started=bad,
        seconds={bad: 1.0},
        machine={bad: bad, "processor": bad, "list": [bad]},
        versions={bad: bad},
        quality={bad: bad, "bits_per_byte": 1.0, "baseline_bits_per_byte": 2.0, "baseline": bad},
        samples=(Sample(prompt=bad, text=bad),),
        files=(SavedFile(name=bad, bytes=1, sha256=bad),),
        checks={bad: bad},
        notes=(bad,),
    )
    page = render(make_report(plan, records, recipe_yaml=bad))
    assert "alert(1)" in page
    assert "<script>alert" not in page
    assert Elements(page).tags.count("script") == 1
    assert Elements(page).tags.count("style") == 1


def test_nothing_is_fetched():
    assert_nothing_is_fetched(full_page())


def test_language_title_and_encoding_are_said():
    page = full_page()
    assert '<html lang="en">' in page
    assert "<title>quickstart \u2013 Burnish report</title>" in page
    assert '<meta charset="utf-8">' in page


def test_numbers_name_their_source_and_their_error():
    page = full_page()
    assert page.count('class="measured">measured<') >= 6
    assert "\u22128.4\u00a0%" in page
    assert ">exact<" in page


def test_published_values_get_a_column_only_when_there_are_any():
    report = make_report(example.plan(), example.records(5), published={"mfu": 0.41})
    assert 'class="published">published<' in render(report)
    assert 'class="published">published<' not in full_page()


def test_failed_checks_are_named_as_failed():
    page = render(make_report(example.plan(), Records(checks={"reload": False, "files": True, "difference": 1e-7})))
    assert 'class="failed">failed<' in page
    assert 'class="passed">passed<' in page
    assert "1e\u221207" in page


def test_markup_passes_once_and_text_never():
    assert el("p", "<b>", el("b", "&")) == "<p>&lt;b&gt;<b>&amp;</b></p>"
    assert isinstance(el("p"), Html)
    assert el("i", title='"', data_x=None, cls="a") == '<i title="&quot;" class="a"></i>'


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_colours_have_enough_contrast(theme):
    colors = colors_of("page.css", theme)
    assert len(colors) == 12
    for ground in ("page", "raised", "track"):
        for ink in ("ink", "soft", "measured", "predicted", "published", "good", "bad"):
            ratio = contrast(colors[ink], colors[ground])
            assert ratio >= 4.5, f"{ink} on {ground}: {ratio:.2f}"


def test_the_legend_names_only_what_is_shown():
    legend = '<span class="key measured">measured</span>'
    assert legend not in render(make_report(example.plan()))
    assert legend in render(make_report(example.plan(), example.records()))


def test_one_of_a_thing_is_not_many():
    page = render(make_report(example.plan(), Records(curve=example.records().curve[:1])))
    assert "1 step," in page
    assert "1 steps" not in page
