"""Where recipes come from and how they are saved: by name, from a Python or YAML file, as a lock.

YAML is read without eval and by the rules of YAML 1.2 (`off` is a word, `3e-4` is a number).
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import keyword
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from burnish.errors import UserError, nearest
from burnish.recipe import Recipe, build, replace
from burnish.recipes import shipped
from burnish.records import write_text
from burnish.vision import recipe as vision
from burnish.vision.recipe import VisionRecipe

LOCK_NAME = "recipe.lock.yaml"


class _Yaml12(yaml.SafeLoader):
    """SafeLoader whose words stay words and whose numbers may have an exponent without a dot."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """As written; a key that stands twice is an error, since either of its values may be the one that was meant."""
        seen = set()
        for key, _ in node.value:
            if key.value in seen and key.tag != "tag:yaml.org,2002:merge":
                raise _TwiceError(f"line {key.start_mark.line + 1}: key {key.value!r} is given twice; keep one of them")
            seen.add(key.value if isinstance(key.value, str) else id(key))
        return super().construct_mapping(node, deep)


class _TwiceError(yaml.YAMLError):
    """A mapping with the same key twice."""


_Yaml12.yaml_implicit_resolvers = {
    first: [(tag, rule) for tag, rule in rules if tag not in ("tag:yaml.org,2002:bool", "tag:yaml.org,2002:float")]
    for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Yaml12.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile("^(true|false)$"), list("tf"))
_Yaml12.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?(\d+\.\d*|\.\d+|\d+)([eE][-+]?\d+)?$"), list("-+.0123456789")
)


def load(name: str, overrides: Iterable[str] = ()) -> Recipe:
    """A recipe by name (`quickstart`), Python file (`my.py:recipe`) or YAML file (a lock too), with `key=value` overrides.

    Raises UserError with one line when there is no such recipe, the file is not one, or a key or value is wrong.
    """
    recipe, _ = load_locked(name, overrides)
    return recipe


def load_locked(name: str, overrides: Iterable[str] = ()) -> tuple[Recipe, dict[str, Any]]:
    """As `load`, with the `lock` part of a lock file (empty for any other source or once a key is overridden)."""
    recipe, lock = load_any(name, overrides)
    if not isinstance(recipe, Recipe):
        raise UserError(f"recipe {name!r}: is one of vision; use it with run, train, plan, report and predict")
    return recipe, lock


def load_any(name: str, overrides: Iterable[str] = ()) -> tuple[Recipe | VisionRecipe, dict[str, Any]]:
    """As `load_locked`, of a decoder's recipe or one of vision."""
    lock: dict[str, Any] = {}
    recipe: Recipe | VisionRecipe
    path, _, function = name.partition(":")
    if path.endswith(".py"):
        recipe = _from_python(Path(path), function)
    elif path.endswith((".yaml", ".yml")):
        recipe, lock = _from_yaml(Path(path))
    elif name in (names := shipped()):
        stem = name.replace("-", "_")
        recipe = getattr(importlib.import_module(f"burnish.recipes.{stem}"), stem)()
    else:
        raise UserError(
            f"recipe {name!r}: not shipped ({nearest(name, names)}) and not a file ending in .yaml, .py or .py:function"
        )
    changes = dict(parse_override(text) for text in overrides)
    if not changes:
        return recipe, lock
    return (replace(recipe, changes) if isinstance(recipe, Recipe) else vision.replace(recipe, changes)), {}


def parse_override(text: str) -> tuple[str, Any]:
    """`key.path=value`: the value is JSON where it is JSON (numbers, true, null, lists), else the text itself."""
    key, equals, value = text.partition("=")
    if not equals or not re.fullmatch(r"[A-Za-z_][\w.]*", key):
        raise UserError(f"override {text!r}: write it as section.key=value, for example train.steps=100")
    try:
        return key, json.loads(value)
    except (ValueError, RecursionError):  # words; also a number or a nesting beyond what Python reads
        return key, value


def _from_python(path: Path, function: str) -> Recipe | VisionRecipe:
    if not path.is_file():
        raise UserError(f"{path}: no such file")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        raise UserError(f"{path}: cannot be read as Python ({_in_short(error)})") from None
    made = [n for n, v in vars(module).items() if callable(v) and getattr(v, "__module__", "") == path.stem]
    function = function or (made[0] if len(made) == 1 else path.stem.replace("-", "_"))
    if function not in made:
        raise UserError(f"{path}: no function {function!r}; {nearest(function, made) if made else 'it defines none'}")
    try:
        recipe = getattr(module, function)()
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        raise UserError(f"{path}:{function}: raised {_in_short(error)}") from None
    if not isinstance(recipe, Recipe | VisionRecipe):
        raise UserError(f"{path}:{function}: returned {type(recipe).__name__}; a recipe function returns a Recipe")
    return recipe


def _in_short(error: BaseException) -> str:
    """An exception on one line."""
    said = str(error)
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        said = f"{error.title}: {'.'.join(map(str, first['loc']))}: {first['msg']}"
    return ": ".join(part for part in (type(error).__name__, " ".join(said.split())) if part)


def _from_yaml(path: Path) -> tuple[Recipe | VisionRecipe, dict[str, Any]]:
    try:
        values = yaml.load(path.read_text(encoding="utf-8"), _Yaml12)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not readable as text ({error})") from None
    except _TwiceError as error:
        raise UserError(f"{path}, {error}") from None
    except yaml.YAMLError as error:
        raise UserError(f"{path}: not valid YAML ({' '.join(str(error).split())})") from None
    if not isinstance(values, dict):
        found = "nothing" if values is None else type(values).__name__
        raise UserError(f"{path}: expected sections (model, data, train, ...), found {found}")
    lock = values.pop("lock", {})
    values.setdefault("name", path.name.removesuffix(".yaml").removesuffix(".yml"))
    made = vision.build(values, str(path)) if "images" in values else build(values, str(path))
    return made, lock if isinstance(lock, dict) else {}


def to_yaml(recipe: Recipe | VisionRecipe, lock: dict[str, Any] | None = None) -> str:
    """The whole recipe as YAML, defaults written out; `load` reads it back to an equal recipe."""
    values = recipe.model_dump(mode="json")
    return yaml.safe_dump(values | ({"lock": lock} if lock else {}), sort_keys=False, allow_unicode=True, width=100)


def save_lock(recipe: Recipe | VisionRecipe, lock: dict[str, Any], folder: Path) -> Path:
    """Write `recipe.lock.yaml`: running that file again repeats the run."""
    path = folder / LOCK_NAME
    write_text(path, to_yaml(recipe, lock))
    return path


def differences(old: dict[str, Any], new: dict[str, Any], prefix: str = "") -> list[str]:
    """`key: old -> new` for every leaf in which two nested records differ."""
    lines = []
    for key in dict.fromkeys([*old, *new]):
        a, b = old.get(key), new.get(key)
        if isinstance(a, dict) and isinstance(b, dict):
            lines += differences(a, b, f"{prefix}{key}.")
        elif a != b:
            lines.append(f"{prefix}{key}: {a!r} -> {b!r}")
    return lines


def write_new(name: str, base: str, folder: Path) -> Path:
    """Start a recipe of one's own as a Python file in `folder` that varies a shipped one. Refuses to overwrite.

    Raises UserError for a name that no function can have and for one that would hide a module of that name.
    """
    if base not in (names := shipped()):
        raise UserError(f"recipe {base!r}: not shipped; {nearest(base, names)}")
    stem = name.replace("-", "_")
    if not stem.isidentifier() or not re.fullmatch(r"[^\W\d_][\w-]*", name):
        raise UserError(f"recipe name {name!r}: use letters, digits, - and _, starting with a letter")
    if keyword.iskeyword(stem) or stem in (*sys.stdlib_module_names, "Recipe", "replace") or name in names:
        raise UserError(f"recipe name {name!r}: is taken; choose another, such as my-{name.lower()}")
    path = folder / f"{stem}.py"
    if path.exists():
        raise UserError(f"{path}: exists already; choose another name or delete it")
    if importlib.util.find_spec(stem) is not None:  # Python looks in this folder first
        raise UserError(f"recipe name {name!r}: {path.name} would hide Python's module {stem}; choose another")
    function = base.replace("-", "_")
    varied, _ = load_any(base)
    kind = type(varied).__name__
    write_text(
        path,
        f'"""The {name} recipe."""\n\n'
        f"from burnish.{'recipe' if kind == 'Recipe' else 'vision.recipe'} import {kind}, replace\n"
        f"from burnish.recipes.{function} import {function}\n\n\n"
        f"def {stem}() -> {kind}:\n"
        f'    """{base} with changes of my own."""\n'
        "    return replace(\n"
        f"        {function}(),\n"
        f'        {{"name": "{name}", "train.steps": {varied.train.steps}}},\n'
        "    )\n",
    )
    return path
