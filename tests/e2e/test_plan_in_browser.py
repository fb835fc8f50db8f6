"""The page of a plan in a real browser, from the command line on: light, dark, narrow, with and without a pick."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from browser import DARK, NEEDED, look, screenshot
from burnish.cli import code_of
from burnish.plan_page import page

pytestmark = NEEDED

FIXTURES = Path(__file__).parents[1] / "fixtures"
ASKED = ["llama-3-70b", "--seq", "8192", "--batch", "128", "--cluster"]


def sample(name: str) -> dict[str, Any]:
    """A plan record."""
    return json.loads((FIXTURES / f"{name}.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Path:
    """The page that the command writes."""
    path = tmp_path_factory.mktemp("plan") / "plan.html"
    assert (
        code_of(["plan", *ASKED, "h100-sxm:8x8", "--fix", "tp=8,pp=4", "--why-not", "tp=64", "--html", str(path)]) == 0
    )
    return path


def assert_well(html: str, folder: Path, width: int, *options: str) -> dict[str, Any]:
    """No sideways scrolling, no request, nothing in the console."""
    seen = look(html, folder, width, *options)
    assert seen["width"] == width
    assert seen["scroll"] <= width, seen["wide"]
    assert seen["console"] == []
    assert seen["requests"] == []
    return seen


@pytest.mark.parametrize(("width", "theme"), [(360, "light"), (400, "dark"), (1280, "light")])
def test_the_page_of_a_plan_fits_and_is_quiet(written, tmp_path, width, theme):
    html = written.read_text(encoding="utf-8")
    seen = assert_well(html, tmp_path, width, *([DARK] if theme == "dark" else []))
    assert seen["dark"] is (theme == "dark")


def test_a_plan_that_does_not_fit_has_a_page_of_its_own(tmp_path):
    path = tmp_path / "none.html"
    assert code_of(["plan", *ASKED, "h100-sxm:1x8", "--html", str(path)]) == 3
    html = path.read_text(encoding="utf-8")
    assert "What would fit" in html
    assert_well(html, tmp_path, 360)


def test_long_words_do_not_widen_a_narrow_screen(tmp_path):
    word, record = "Donaudampfschifffahrt" * 12, sample("plan")
    record["model"]["name"] = record["cluster"]["name"] = record["stack"]["name"] = word
    record["pick"]["words"] = record["alternatives"][0]["words"] = record["alternatives"][0]["reason"] = word
    record["why"][0]["text"], record["why"][0]["merit"] = f"{word}: {word}", word
    record["ignored"] = [{"option": word, "why": word}]
    assert_well(page(record), tmp_path, 360)


def test_many_stages_fit_a_narrow_screen(tmp_path):
    record = sample("plan")
    record["pick"]["pipeline"] |= {"stages": 48, "micro_batches": 4800}
    assert_well(page(record), tmp_path, 360)


def test_pictures_of_a_plan_in_light_and_dark(written, tmp_path):
    _, _, light = screenshot(written, tmp_path, "light.png", "--window-size=1280,1600")
    _, _, dark = screenshot(written, tmp_path, "dark.png", "--window-size=1280,1600", DARK)
    passes, passes_dark = {(0x38, 0x62, 0x7F), (0xA4, 0x55, 0x1F)}, {(0x6F, 0xA3, 0xC7), (0xE0, 0x8F, 0x5A)}
    assert passes <= light
    assert passes_dark <= dark
    assert not passes & dark
