"""The page of a report in a real browser: light, dark and on a phone; no error, request or sideways scrolling."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import report_example as example
from browser import DARK, NEEDED, look, screenshot
from burnish.records import Records, Sample
from burnish.report import make_report, write_report

pytestmark = NEEDED


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> Path:
    """A full report on disk."""
    report = make_report(example.plan(), example.records(), recipe_yaml=example.RECIPE)
    return write_report(report, tmp_path_factory.mktemp("report"))[1]


@pytest.mark.parametrize(("width", "theme"), [(390, "light"), (390, "dark"), (320, "light"), (1280, "light")])
def test_the_page_fits_is_quiet_and_answers_the_pointer(page, tmp_path, width, theme):
    seen = look(page.read_text(encoding="utf-8"), tmp_path, width, *([DARK] if theme == "dark" else []))
    assert seen["width"] == width
    assert seen["scroll"] <= width, seen["wide"]
    assert seen["console"] == []
    assert seen["requests"] == []
    assert seen["dark"] is (theme == "dark")
    assert re.fullmatch(r"step \d+ · \d\.\d{3}", seen["tip"])


def test_long_words_and_numbers_do_not_widen_a_phone(tmp_path):
    word = "Donaudampfschifffahrt" * 12
    plan = example.plan().model_copy(update={"recipe": word, "notes": (word,)})
    records = Records(
        machine={"processor": word, word: word},
        versions={"torch": word},
        measured={"flops.step": 9.87e23, "tokens_per_second": 123_456_789.0},
        samples=(Sample(prompt=word, text=word),),
        checks={word: True},
    )
    html = write_report(make_report(plan, records, recipe_yaml=f"k: {word}"), tmp_path)[1].read_text(encoding="utf-8")
    seen = look(html, tmp_path, 390)
    assert seen["scroll"] <= 390, seen["wide"]
    assert seen["console"] == []


def test_pictures_in_light_dark_and_on_a_phone(page, tmp_path):
    width, height, light = screenshot(page, tmp_path, "light.png", "--window-size=1280,1600")
    assert (width, height) == (1280, 1600)
    _, _, dark = screenshot(page, tmp_path, "dark.png", "--window-size=1280,1600", DARK)
    assert (0xFA, 0xF8, 0xF4) in light
    assert (0x16, 0x14, 0x12) in dark
    assert (0xFA, 0xF8, 0xF4) not in dark
    assert len(light) > 20, "an empty page has few colours"
    frame = tmp_path / "phone.html"
    inner = f'<iframe src="{page.as_uri()}" style="border:0;width:390px;height:3000px">'
    frame.write_text(f'<!doctype html><body style="margin:0">{inner}')
    _, _, phone = screenshot(frame, tmp_path, "phone.png", "--window-size=500,3000")
    assert (0xFA, 0xF8, 0xF4) in phone


@pytest.mark.sabotage
def test_sabotage_a_wide_element_a_request_and_a_script_error_are_noticed(page, tmp_path):
    html = page.read_text(encoding="utf-8")
    wide = look(html.replace("<main>", '<main><div style="width:500px">wide</div>'), tmp_path, 390)
    assert wide["scroll"] > 390
    fetched = look(html.replace("<main>", '<main><img src="http://example.invalid/x.png">'), tmp_path, 390)
    assert any("Content Security Policy" in line for line in fetched["console"])
    broken = look(html.replace("dataset.points", "dataset.nothing.x"), tmp_path, 390)
    assert any("Uncaught" in line for line in broken["console"])
