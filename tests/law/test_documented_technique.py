"""The technique that the docs add: its file, its row and its test are taken from the page and run."""

import re
import subprocess
import sys
import types
from pathlib import Path

import pytest

from burnish import passes

PAGE = Path(__file__).parents[2] / "docs" / "adding_a_technique.md"


def blocks() -> dict[str, str]:
    """The page's code by the file it stands for."""
    return dict(re.findall(r'```python title="([^"]+)"\n(.*?)```', PAGE.read_text(encoding="utf-8"), re.S))


@pytest.fixture
def freeze(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """The documented technique as a module, its documented row first among the passes."""
    code = blocks()
    module = types.ModuleType("burnish.techniques.freeze")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile(code["src/burnish/techniques/freeze.py"], "freeze.py", "exec"), module.__dict__)
    row = eval(code["src/burnish/passes.py"], {"Technique": passes.Technique, "freeze": module})
    monkeypatch.setattr(passes, "PASSES", (row, *passes.PASSES))
    return module


@pytest.mark.parametrize("micro", [1, 3])
@pytest.mark.parametrize("more", [{}, {"memory.checkpointing": "full"}], ids=["alone", "checkpointing"])
@pytest.mark.parametrize("tied", [True, False])
def test_the_documented_test_holds(freeze: types.ModuleType, tied: bool, more: dict, micro: int) -> None:
    names: dict = {}
    exec(compile(blocks()["tests/law/test_freeze_law.py"], "test_freeze_law.py", "exec"), names)
    names["test_predicted_equals_observed"](tied, more, micro)


def test_the_documented_test_would_notice_a_break(freeze: types.ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(freeze, "predict", lambda config, work, mesh, table=None: work)
    names: dict = {}
    exec(compile(blocks()["tests/law/test_freeze_law.py"], "test_freeze_law.py", "exec"), names)
    with pytest.raises(AssertionError):
        names["test_predicted_equals_observed"](True, {}, 1)


def test_the_command_line_knows_it(freeze: types.ModuleType, capsys: pytest.CaptureFixture) -> None:
    from burnish.cli import code_of

    assert code_of(["plan", "quickstart", "techniques.freeze={}"]) == 0
    assert "freeze" in capsys.readouterr().out
    assert code_of(["plan", "quickstart", 'techniques.freeze={"layer": 1}']) == 2
    assert "techniques: freeze: layer: unknown key" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["src/burnish/techniques/freeze.py", "tests/law/test_freeze_law.py"])
def test_the_documented_files_keep_the_rules(name: str, tmp_path: Path) -> None:
    """As they stand on the page: what `scripts/check` asks of every file."""
    path = tmp_path / name
    path.parent.mkdir(parents=True)
    path.write_text(blocks()[name], encoding="utf-8")
    root = PAGE.parents[1]
    settings = ["--config", str(root / "pyproject.toml"), "--no-cache", str(path)]
    for check in (["check"], ["format", "--check"]):
        ran = subprocess.run([sys.executable, "-m", "ruff", *check, *settings], capture_output=True, text=True)
        assert ran.returncode == 0, ran.stdout
    rules = [sys.executable, "-c", f"import bounds, pathlib; print(bounds.check(pathlib.Path({str(tmp_path)!r}))[1])"]
    ran = subprocess.run(rules, cwd=root / "scripts" / "rules", capture_output=True, text=True)
    assert ran.stdout == "[]\n", ran.stdout + ran.stderr
