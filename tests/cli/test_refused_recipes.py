"""Refused recipes: values, names and files that no run could use end with one line and exit code 2, at once."""

from collections.abc import Callable
from pathlib import Path

import pytest

from burnish.cli import code_of
from burnish.errors import UserError, nearest

RAISES = """
from burnish.recipe import Recipe
def mine() -> Recipe:
    {body}
"""


def overriding(*changes: str) -> Callable[[], list[str]]:
    return lambda: ["recipe", "show", "quickstart", *changes]


def written(name: str, content: str) -> Callable[[], list[str]]:
    def make() -> list[str]:
        Path(name).write_text(content)
        return ["recipe", "show", name]

    return make


def naming(name: str) -> Callable[[], list[str]]:
    return lambda: ["recipe", "new", "--", name]


def raising(body: str) -> Callable[[], list[str]]:
    return written("mine.py", RAISES.format(body=body))


CASES: dict[str, tuple[Callable[[], list[str]], str]] = {
    "name outside the folder": (overriding("name=../esc"), "name"),
    "name that is a folder": (overriding("name=.."), "name"),
    "name that is empty": (overriding('name=""'), "name"),
    "name in a YAML file": (written("mine.yaml", "name: a/b\n"), "name"),
    "new recipe that is a keyword": (naming("class"), "my-class"),
    "new recipe that hides a module": (naming("json"), "my-json"),
    "new recipe that hides a package": (naming("yaml"), "yaml.py would hide"),
    "new recipe elsewhere": (naming("../esc"), "letters, digits"),
    "new recipe with a quote": (naming('a"b'), "letters, digits"),
    "new recipe named as a shipped one": (naming("quickstart"), "my-quickstart"),
    "techniques that are a number": (overriding("techniques=5"), "techniques"),
    "techniques that are a list": (overriding("techniques=[1]"), "techniques"),
    "section that is a number": (overriding("model.heads=2", "model=5"), "model"),
    "seed beyond 64 bits": (overriding("train.seed=99999999999999999999"), "9223372036854775807"),
    "truth as a number": (overriding("train.steps=true"), "train.steps: expected a number"),
    "truth as a rate": (overriding("optim.lr=false"), "optim.lr: expected a number"),
    "truth as a token": (overriding("model.eos=true"), "model.eos: expected a number"),
    "bytes that are no text": (overriding("about=\udcff"), "UTF-8"),
    "number too long to read": (overriding("train.seed=" + "9" * 5000), "train.seed"),
    "warm-up above the steps": (overriding("train.steps=20"), "schedule.warmup_steps=2"),
    "decay above the steps": (overriding("train.steps=60", "schedule.decay_steps=70"), "schedule.decay_steps=12"),
    "keys that are missing": (written("mine.yaml", "model: {heads: 2}\n"), "model.vocab, model.hidden, model.ffn"),
    "key given twice": (
        written("mine.yaml", "train:\n  steps: 3\n  seed: 1\n  steps: 4\n"),
        "mine.yaml, line 4: key 'steps'",
    ),
    "section given twice": (written("mine.yaml", "train: {steps: 3}\nmodel: {}\ntrain: {steps: 4}\n"), "line 3"),
    "function that fails": (raising("return {}['a']"), "mine.py:mine: raised KeyError: 'a'"),
    "function that leaves": (raising("raise SystemExit(7)"), "mine.py:mine: raised SystemExit: 7"),
    "function with two lines to say": (raising("raise OSError('a\\nb')"), "raised OSError: a b"),
    "function with a wrong recipe": (raising("return Recipe(name='x')"), "Recipe: model: Field required"),
    "file that fails": (written("mine.py", "1 / 0\n"), "ZeroDivisionError"),
    "file that leaves": (written("mine.py", "raise SystemExit\n"), "SystemExit"),
}


@pytest.mark.parametrize("name", CASES)
def test_one_line_exit_code_2_and_nothing_written(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    inside = tmp_path / "here"
    inside.mkdir()
    monkeypatch.chdir(inside)
    make, needle = CASES[name]
    arguments = make()
    before = set(tmp_path.rglob("*"))
    code = code_of(arguments)
    (line,) = capsys.readouterr().err.splitlines()
    assert code == 2, line
    assert line.startswith("burnish: ")
    assert needle in line
    assert {path for path in set(tmp_path.rglob("*")) - before if "__pycache__" not in path.parts} == set()


def test_the_largest_seed_is_taken(capsys: pytest.CaptureFixture) -> None:
    assert code_of(["recipe", "show", "quickstart", "train.seed=9223372036854775807"]) == 0
    assert "seed: 9223372036854775807" in capsys.readouterr().out


def test_a_recipe_function_may_refuse_in_its_own_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(RAISES.format(body="from burnish.errors import UserError; raise UserError('not today')"))
    assert code_of(["recipe", "show", "mine.py"]) == 2
    assert capsys.readouterr().err == "burnish: not today\n"


@pytest.mark.parametrize(
    ("name", "known", "said"),
    [
        ("h100", ["h200", "h100-sxm", "l4"], "did you mean 'h100-sxm'?"),
        ("h100", ["h100-pcie", "h100-sxm", "h200"], "did you mean 'h100-pcie' or 'h100-sxm'?"),
        ("H100-SXM", ["h100-sxm", "h200"], "did you mean 'h100-sxm'?"),
        ("layrs", ["layers", "heads"], "did you mean 'layers'?"),
        ("zz", ["jay", "fox"], "known: fox, jay"),
        ("any", [], "none is known"),
    ],
)
def test_near_names(name: str, known: list[str], said: str) -> None:
    assert nearest(name, known) == said


def test_a_name_is_refused_in_python_too() -> None:
    from burnish.recipe import replace
    from burnish.recipes.quickstart import quickstart

    with pytest.raises(UserError, match="no slash"):
        replace(quickstart(), {"name": "../esc"})
