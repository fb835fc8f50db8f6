"""What `burnish plan` prints and writes: pages beside nothing they would destroy, names without terminal codes."""

import json
import os
from pathlib import Path

import pytest

from burnish import streams
from burnish.cli import code_of
from burnish.presets import presets

ASKED = ["--cluster", "h100-sxm:1x1", "--seq", "1024", "--batch", "1"]
ESCAPE = "\x1b[31m\x1b]0;title\x07\x9b5m\u202e"
CONFIG = {
    "model_type": "llama",
    "hidden_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "intermediate_size": 1024,
    "vocab_size": 1000,
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("in.json").write_text(json.dumps(CONFIG))
    return tmp_path


def refused(arguments: list[str], capsys: pytest.CaptureFixture) -> str:
    assert code_of(arguments) == 2
    said = capsys.readouterr()
    assert said.out == ""
    (line,) = said.err.splitlines()
    return line


def test_a_page_never_replaces_what_the_plan_reads(here: Path, capsys: pytest.CaptureFixture) -> None:
    before = Path("in.json").read_text()
    Path("again.html").symlink_to("in.json")
    for page in ("in.json", "./in.json", "again.html"):
        assert "in.json" in refused(["plan", "in.json", *ASKED, "--html", page], capsys)
    assert Path("in.json").read_text() == before
    Path("folder").mkdir()
    Path("folder/config.json").write_text(before)
    assert "config.json" in refused(["plan", "folder", *ASKED, "--html", "folder/config.json"], capsys)
    machine = 'chip = "h100-sxm"\nnodes = 1\nper_node = 1\n'
    Path("c.toml").write_text(machine)
    own = ["plan", "in.json", "--cluster", "c.toml", *ASKED[2:], "--html", "c.toml"]
    assert "c.toml" in refused(own, capsys)
    assert Path("c.toml").read_text() == machine


@pytest.mark.parametrize("page", ["", ".", "missing/page.html", "pipe", "kept.html"])
def test_what_is_no_place_for_a_page_is_refused_before_anything_is_planned(
    page: str, here: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo("pipe")
    Path("kept.html").write_text("kept")
    Path("kept.html").chmod(0o444)
    names = sorted(path.name for path in here.iterdir())
    monkeypatch.setattr("burnish.planner.plan_model", lambda *_: pytest.fail("planned"))
    refused(["plan", "in.json", *ASKED, "--html", page], capsys)
    assert sorted(path.name for path in here.iterdir()) == names


def test_a_page_follows_a_link(here: Path, capsys: pytest.CaptureFixture) -> None:
    Path("page.html").write_text("old")
    Path("link.html").symlink_to("page.html")
    assert code_of(["plan", "in.json", *ASKED, "--html", "link.html"]) == 0
    assert Path("link.html").is_symlink()
    assert "<html" in Path("page.html").read_text()


@pytest.mark.parametrize(("text", "plain"), [(ESCAPE, "[31m]0;title5m"), ("a\nb\tc", "a b c"), ("été", "été")])
def test_what_steers_a_terminal_is_taken_out(text: str, plain: str) -> None:
    assert streams.printable(text) == plain


def test_names_from_files_and_words_steer_no_terminal(here: Path, capsys: pytest.CaptureFixture) -> None:
    Path(f"{ESCAPE}.json").write_text(json.dumps(CONFIG))
    code_of(["plan", f"{ESCAPE}.json", *ASKED])
    code_of(["plan", f"no{ESCAPE}such", *ASKED])
    code_of(["plan", "in.json", "--cluster", f"h100{ESCAPE}:1x1", *ASKED[2:]])
    said = capsys.readouterr()
    assert not {"\x1b", "\x07", "\x9b", "\u202e"} & set(said.out + said.err)
    assert len(said.err.splitlines()) <= 3


def test_a_terminal_shows_errors_cut_between_words(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    streams.complain("word " * 60)
    assert len(capsys.readouterr().err.splitlines()) == 1
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "300")
    streams.complain("word " * 60)
    shown = capsys.readouterr().err.splitlines()
    assert len(shown) > 1
    assert max(map(len, shown)) <= streams.WIDTH


def test_names_are_printed(capsys: pytest.CaptureFixture) -> None:
    assert code_of(["plan", "--list", "models"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(presets())
    assert code_of(["plan", "--list", "stacks"]) == 0
    assert "megatron-core-2026" in capsys.readouterr().out
    assert "'models'" in refused(["plan", "--list", "model"], capsys)
    assert "--list" in refused(["plan"], capsys)
