"""The practice page in a real browser, by keyboard alone: a whole set, a measurement, light, dark and narrow."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from browser import NEEDED
from burnish.practice import bank
from typed_page import Page, opened

pytestmark = NEEDED
BANK = bank.shipped()


@contextmanager
def served(state: Path) -> Iterator[str]:
    """The address that `burnish practice --web` prints; in the end it is stopped as a person stops it."""
    env = {**os.environ, "XDG_STATE_HOME": str(state)}
    command = [sys.executable, "-m", "burnish", "practice", "--web", "--seed", "7"]
    process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    found = re.fullmatch(r"practice is at (http://127\.0\.0\.1:\d+/[\w-]+/)\n", process.stdout.readline())
    assert found is not None
    try:
        yield found[1]
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def place_of_the_answer(page: Page) -> int:
    """Where the right option stands, of what the page shows."""
    stem = page.value("document.querySelector('form legend').textContent")
    (question,) = [question for question in BANK.questions if question.stem == stem]
    shown = page.value("[...document.querySelectorAll('label.option span')].map((e) => e.textContent)")
    return shown.index(question.options[question.answer].text)


def assert_well(page: Page, address: str, width: int) -> None:
    """Nothing is wider than the window, nothing was asked of anybody else, nothing is in the console."""
    assert page.value("document.documentElement.scrollWidth") <= width
    assert {url for url in page.requests if not url.startswith((address, "data:", "about:"))} == set()
    assert page.console == []


def test_a_set_by_keyboard_with_a_measurement(tmp_path: Path) -> None:
    with served(tmp_path) as address, opened(address, tmp_path / "profile") as page:
        page.until("document.getElementById('mixed')")
        assert page.value("document.activeElement.textContent") == "What to practise?"
        page.tab_to("short-mapping")
        assert page.value("getComputedStyle(document.activeElement).outlineStyle") == "solid"
        page.press("Enter")
        page.until("document.getElementById('option-0')")
        assert page.value("document.activeElement.id") == "option-0"
        assert page.value("document.querySelectorAll('form fieldset > legend').length") == 1
        assert page.value("[...document.querySelectorAll('form input')].every((e) => e.labels.length === 1)")
        right = place_of_the_answer(page)
        page.press("ArrowDown")  # the second option, as radio buttons go; then as many further as it takes
        page.press("ArrowDown", (right - 1) % 4)
        page.press("Enter")
        page.until("document.getElementById('said')")
        assert page.value("document.activeElement.id") == "said"
        assert page.value("document.getElementById('said').textContent") == f"Right: {'ABCD'[right]}."
        assert page.value("document.querySelectorAll('.why').length") == 4
        page.until("document.getElementById('live').textContent.startsWith('Right: ')")
        page.press("s")
        page.until("document.getElementById('verdict')", 60)
        assert "mapping holds here, in" in page.value("document.getElementById('verdict').textContent")
        assert "pick tp" in page.value("document.querySelector('.shown .figure').textContent")
        page.until("document.getElementById('live').textContent.startsWith('mapping holds here: ')")
        page.tab_to("next")
        for number in range(2, 7):
            page.press("Enter")
            page.until(f"document.querySelector('.facts').textContent.includes('Question {number} of 6')")
            page.until("document.getElementById('option-0')")
            page.press("ABCD"[(place_of_the_answer(page) + 1) % 4].lower())
            page.until("document.getElementById('said')")
        page.press("Enter")
        page.until("document.querySelector('h2')?.textContent.startsWith('Score: 1 of 6')")
        page.tab_to("leave")
        page.press(" ")
        page.until("document.getElementById('wrong')")
        assert page.value("document.getElementById('wrong').textContent") == "5 wrong before"
        assert_well(page, address, 800)


@pytest.mark.parametrize(("width", "dark"), [(320, True), (900, False)])
def test_narrow_and_dark(tmp_path: Path, width: int, dark: bool) -> None:
    with served(tmp_path) as address, opened(address, tmp_path / "profile", width, dark) as page:
        page.until("document.getElementById('mixed')")
        page.value("document.getElementById('timed').focus()")
        page.press(" ")
        page.tab_to("short-speculation")
        page.press("Enter")
        page.until("document.getElementById('left')?.textContent.endsWith(' left')")
        assert_well(page, address, width)
        page.press("d")
        page.until("document.getElementById('said')")
        assert_well(page, address, width)
        ground = page.value("getComputedStyle(document.body).backgroundColor")
        assert ground == ("rgb(22, 20, 18)" if dark else "rgb(250, 248, 244)")
        page.press("q")
        page.until("document.getElementById('short-speculation')?.textContent.endsWith('(half done)')")
        assert_well(page, address, width)
        page.tab_to("lab-mapping")
        page.press("Enter")
        page.until("document.getElementById('verdict')", 60)
        assert "pick tp" in page.value("document.querySelector('.shown .figure').textContent")
        assert_well(page, address, width)
