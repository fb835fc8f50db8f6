"""The page of claims: every verdict in words, all text escaped, nothing fetched, and no page where none can be."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from burnish import prove, prove_page
from burnish.cli import code_of
from burnish.prove.claim import Verdict

MADE = Verdict(
    claim="zero",
    statement="Stage 2 shrinks <gradients>.",
    varied="stage",
    held="model",
    expected="0.5x",
    measured="0.498x",
    holds=True,
    why="each rank keeps its part",
    source="Rajbhandari et al. 2020",
    code="src/burnish/techniques/zero.py",
    seconds=12.3,
)
FAILED = MADE.model_copy(update={"claim": "awq", "holds": False, "measured": "1.2x & more"})


def test_every_claim_is_in_the_table_and_explained() -> None:
    page = prove_page.page([MADE, FAILED], "2026-03-01T10:00:00+00:00")
    text = " ".join(re.sub(r"<style>.*?</style>|<[^>]*>", " ", page, flags=re.S).split())
    assert "claims that hold 1 measured · of 2 claims" in text
    assert "some do not hold" in text
    assert "zero 0.5x 0.498x holds awq 0.5x 1.2x &amp; more does not hold" in text
    assert text.count("Stage 2 shrinks &lt;gradients&gt;.") == 2
    for name in ("zero", "awq"):
        assert f'href="#{name}"' in page
        assert f'id="{name}"' in page
    assert not re.search(r"https?://|<script", page)


def test_a_page_is_written_of_what_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(prove, "prove", lambda claim=None: [MADE])
    monkeypatch.chdir(tmp_path)
    assert code_of(["prove"]) == 0
    assert "page: prove.html" in capsys.readouterr().out
    assert "all hold" in Path("prove.html").read_text(encoding="utf-8")
    assert code_of(["prove", "zero", "--json", "--html", "one.html"]) == 0
    assert '"claim": "zero"' in capsys.readouterr().out
    assert Path("one.html").exists()
    assert code_of(["prove", "zero", "--html", "missing/one.html"]) == 2
    assert "there is no folder" in capsys.readouterr().err


def test_what_is_not_installed_is_said_before_anything_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "monai" else find(name))
    monkeypatch.setattr(prove, "_measure", lambda name: MADE)
    for words, what in ((["prove"], "prove"), (["prove", "pruning"], "prove pruning")):
        assert code_of(words) == 2
        said = f"burnish: {what} needs monai, which is not installed; install it with: pip install 'burnish[vision]'\n"
        assert capsys.readouterr().err == said
    assert code_of(["prove", "zero"]) == 0
