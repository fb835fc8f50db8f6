"""Each rule of scripts/check notices what it is there for: a small tree that breaks it, beside one that does not."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

RULES = Path(__file__).resolve().parents[2] / "scripts" / "rules"
sys.path.insert(0, str(RULES))

import bounds  # noqa: E402
import documents  # noqa: E402
import duplicates  # noqa: E402
import imports  # noqa: E402
import wording  # noqa: E402


@pytest.fixture
def tree(tmp_path):
    """Writes files below a small repository; the package is importable."""

    def write(**files: str) -> Path:
        for name, text in {"src/burnish/__init__.py": '"""Package."""\n', **files}.items():
            path = tmp_path / name.replace("__at__", "/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    return write


def package(**modules: str) -> dict[str, str]:
    return {f"src/burnish/{name.replace('__at__', '/')}.py": f'"""File."""\n{text}' for name, text in modules.items()}


def test_an_import_upwards_is_refused(tree):
    _, problems = imports.check(tree(**package(config="import burnish.run\n", run="")))
    assert problems == ["src/burnish/config.py:2: config imports burnish.run, which stands above it"]


def test_an_import_downwards_and_one_for_types_only_pass(tree):
    typed = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from burnish import run\n"
    figure, problems = imports.check(tree(**package(config=typed, run="from burnish.config import run\n", errors="")))
    assert problems == []
    assert figure.startswith("4 modules, 1 imports")


def test_models_import_torch_and_models_only(tree):
    models = {
        "models__at____init__": "",
        "models__at__decoder": "import numpy\nfrom burnish import errors\nimport math\n",
    }
    _, problems = imports.check(tree(**package(errors="", **models)))
    assert problems == [
        "src/burnish/models/decoder.py:3: models imports burnish.errors, but may import only models",
        "src/burnish/models/decoder.py:2: models imports numpy; only torch is allowed there",
    ]


def test_mutual_imports_are_refused_however_long_and_lazy(tree):
    texts = package(
        data__at____init__="",
        data__at__a="import burnish.data.b\n",
        data__at__b="import burnish.data.c\n",
        data__at__c="def f():\n    from burnish.data import a\n    return a\n",
    )
    _, problems = imports.check(tree(**texts))
    assert problems == [
        "mutual imports: burnish.data.a -> burnish.data.b -> burnish.data.c -> burnish.data.a",
    ]


def test_a_torch_free_module_that_loads_torch_is_named(tree):
    fake = {"src/torch/__init__.py": ""}  # stands first on the path, so that the test does not wait for the real one
    _, problems = imports.check(tree(**package(plan="import torch\n", units=""), **fake))
    assert "burnish.plan loads torch" in problems
    assert not [p for p in problems if "units" in p]


def test_a_file_without_a_layer_is_refused(tree):
    _, problems = imports.check(tree(**package(oddments="")))
    assert len(problems) == 1
    assert "'oddments' has no layer" in problems[0]


def test_bounds_of_files_functions_and_parameters(tree):
    long_function = "def f():\n" + "    x = 1\n" * 60
    many = (
        "class A:\n    def g(self, a, b, c, d, e, f, g, h, *, i): ...\n    def h(self, a, b, c, d, e, f, g, h): ...\n"
    )
    files = package(big="x = 1\n" * 300, function=long_function, many=many) | {"tests/test_x.py": "x = 1\n"}
    figure, problems = bounds.check(tree(**files))
    assert problems == [
        "src/burnish/big.py: 301 lines, at most 300",
        "src/burnish/function.py:2 f: 61 lines, at most 60",
        "src/burnish/many.py:3 g: 9 parameters, at most 8; a config record holds more",
        "tests/test_x.py: the first line states the idea of the file, as a docstring",
    ]
    assert figure == "longest file 301, longest function 61, most parameters 9"


def test_a_named_exception_is_left_out(tree, monkeypatch):
    monkeypatch.setitem(bounds.EXCEPTIONS, "src/burnish/big.py", "a table")
    figure, problems = bounds.check(tree(**package(big="x = 1\n" * 300)))
    assert problems == []
    assert figure.endswith("1 exceptions")


def test_six_lines_written_twice_are_found_across_comments_and_blanks(tree):
    lines = [f"    value_{k} = compute({k})\n" for k in range(6)]
    one = "def f():\n" + "".join(lines)
    two = "def g():\n" + "\n    # said otherwise\n".join(lines)
    figure, problems = duplicates.check(tree(**package(one=one, two=two)))
    assert len(problems) == 1
    assert "one.py:3 = src/burnish/two.py:3" in problems[0]
    assert figure.startswith("33.33%")
    assert duplicates.check(tree(**package(two="")))[1] == []


def test_readme_paths_and_scripts_that_are_missing_are_named(tree):
    readme = "See `src/burnish/nothing.py`, `src/burnish/__init__.py` and `runs/quickstart`.\n"
    readme += "```\nscripts/nothing --all\n```\n"
    _, problems = documents.check(tree(**{"README.md": readme, "CONTRIBUTING.md": "x\n"}))
    assert problems == [
        "README.md: no such path: src/burnish/nothing.py",
        "README.md: scripts/nothing --all: scripts/nothing is not an executable file",
    ]


def test_unknown_verbs_options_recipes_and_overrides_are_named():
    root = RULES.parents[1]
    good = [
        "burnish plan quickstart",
        "burnish recipe list",
        "burnish run quickstart train.steps=100 --out x",
        "scripts/test --all",
    ]
    assert documents.commands_missing(root, [("R", c) for c in good]) == []
    bad = [
        "burnish fly",
        "burnish plan quickstart --loud",
        "burnish plan quickstarted",
        "burnish run quickstart train.stepz=5",
    ]
    problems = documents.commands_missing(root, [("R", c) for c in [*bad, "scripts/test --most"]])
    assert problems == [
        "R: scripts/test --most: --most is not in scripts/test",
        "R: burnish fly: not a command",
        "R: burnish plan quickstart --loud: no option --loud",
        "R: burnish plan quickstarted: no such recipe, or an override it refuses",
        "R: burnish run quickstart train.stepz=5: no such recipe, or an override it refuses",
    ]


@pytest.mark.parametrize(
    "line",
    [
        "cd /home/somebody/burnish",
        "see /root/models",
        "pip install --extra-index-url x torch",
        "https://registry.example.org/simple",
        "# as asked in issue 12",
        "raise NotImplementedError",
        "# TODO later",
    ],
)
def test_words_that_are_not_of_the_project_are_refused(tree, line):
    _, problems = wording.check(tree(**{"docs/a.md": f"fine\n{line}\n"}))
    assert len(problems) == 1
    assert problems[0].startswith("docs/a.md:2: ")


@pytest.mark.parametrize("line", ["the root/cause", "src/burnish/work/x", "~/work/x", "$HOME/home/x", "a known issue"])
def test_ordinary_words_pass(tree, line):
    assert wording.check(tree(**{"docs/a.md": f"{line}\n"}))[1] == []
