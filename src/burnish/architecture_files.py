"""Architecture files: the `config.json` of any decoder as an architecture, by a table of what each kind calls its sizes."""

from __future__ import annotations

import ast
import difflib
import json
import math
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from burnish.architecture import Architecture
from burnish.errors import UserError
from burnish.parameters import dense, parameters

MOST = 10**9  # of a size without a bound of its own
# Beyond any decoder there has been; what is counted of a model and a step stays within 64 bits.
LARGEST = {"vocab": 10**8, "hidden": 10**6, "layers": 10**4, "heads": 10**5, "kv_heads": 10**5, "head_dim": 10**5}
LARGEST |= {"ffn": 10**8, "experts": 10**5, "expert_ffn": 10**7, "mtp": 100}
LARGEST_MODEL = 10**15  # parameters
FLAGS = ("gated", "clamped", "tied", "layer_norm", "qkv_bias", "qk_norm")
NEAR = 0.7  # likeness of names above which one may be meant for the other
# How architectures of kinds that no table lists are named, and what such a name says.
ENDINGS = {
    "MaskedLM": "an encoder of text, not a decoder",
    "ImageClassification": "a model of pictures, not a decoder of text",
    "SequenceClassification": "a classifier, not a decoder of text",
    "ConditionalGeneration": "a model with an encoder or other parts, not a decoder alone",
}


class Missing(Exception):
    """An expression needs a key that is not there."""


@cache
def table() -> dict[str, Any]:
    """The kinds of decoders and what is refused, as the table stands."""
    path = Path(__file__).parent / "tables" / "decoders.toml"
    return tomllib.loads(path.read_text(encoding="utf-8"))


def read(path: Path) -> Architecture:
    """The decoder of a `config.json`, or of a folder that holds one. Raises UserError naming the file and the key."""
    file = path / "config.json" if path.is_dir() else path
    try:
        content = file.read_bytes()
    except FileNotFoundError:
        raise UserError(f"model {path}: no config.json there") from None
    except OSError as error:
        raise UserError(f"model {path}: not readable ({error.strerror})") from None
    try:
        values = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise UserError(f"model {file}: not readable as JSON ({str(error)[:80]})") from None
    if not isinstance(values, dict):
        raise UserError(f"model {file}: expected a JSON object, found {type(values).__name__}")
    return decoder(values, str(file))


def decoder(values: Mapping[str, Any], where: str) -> Architecture:
    """The decoder that the content of a `config.json` describes.

    Raises UserError: what it is if it is no decoder, near kinds if it is unknown, the key if a size is missing or wrong.
    """
    kind = _kind(values, where)
    made = table()["decoder"][kind]
    if (inside := made.get("inside")) is not None:
        part = values.get(inside)
        if not isinstance(part, dict):
            raise UserError(f"{where}: {inside} is missing; it holds the sizes of a {kind} decoder")
        values = {**part, "tie_word_embeddings": part.get("tie_word_embeddings", values.get("tie_word_embeddings"))}
    sizes, upstream = _rules(kind)
    given = {**upstream, **{key: value for key, value in values.items() if value is not None}}
    read_ = {field: _size(field, expressions, given, where) for field, expressions in sizes.items()}
    found = {field: value for field, (value, _) in read_.items()}
    if not found.get("window"):
        found |= {"window": 0, "windowed_layers": 0}
    made = Architecture(name=_name(values, where), **found)
    _check(made, {field: key for field, (_, key) in read_.items()}, where)
    return made


def _kind(values: Mapping[str, Any], where: str) -> str:
    stated = values.get("model_type")
    kinds = [name for name in table()["decoder"] if not name.startswith("_")]
    kind = table()["same"].get(stated, stated) if isinstance(stated, str) else None
    if kind in kinds:
        return str(kind)
    for what, names in table()["refused"].items():
        if kind in names:
            raise UserError(f"{where}: {kind} is {what}")
    if kind is None and (diffusers := values.get("_class_name")):
        raise UserError(f"{where}: {str(diffusers)[:60]!r} is a diffusion model's part, not a decoder of text")
    listed = values.get("architectures")
    first = str(listed[0]) if isinstance(listed, list) and listed else ""
    if (what := next((what for ending, what in ENDINGS.items() if first.endswith(ending)), None)) is not None:
        raise UserError(f"{where}: {first[:60]!r} is {what}")
    if not isinstance(stated, str):
        raise UserError(f"{where}: model_type is missing; it names the kind of model, such as 'llama'")
    raise UserError(f"{where}: model_type {stated[:60]!r} is not known; {_near(stated, kinds)}")


def _near(stated: str, kinds: list[str]) -> str:
    """Kinds whose names are really like a stated one, else how many there are."""
    if close := difflib.get_close_matches(stated.lower(), kinds, n=2, cutoff=NEAR):
        return f"did you mean {' or '.join(map(repr, close))}?"
    return f"{len(kinds)} kinds are, such as llama, qwen3 and mixtral"


@cache
def _rules(kind: str) -> tuple[dict[str, list[str]], dict[str, Any]]:
    """A kind's expressions by field and what upstream assumes, those of the kind it is like included."""
    made = table()["decoder"][kind]
    sizes, upstream = _rules(made["like"]) if "like" in made else ({}, {})
    return {**sizes, **made.get("size", {})}, {**upstream, **made.get("upstream", {})}


def _size(field: str, expressions: list[str], given: Mapping[str, Any], where: str) -> tuple[int, str]:
    """A size and the expression it is from."""
    most = 1 if field in FLAGS else LARGEST.get(field, MOST)
    for expression in expressions:
        node = ast.parse(expression, mode="eval").body
        try:
            value = _value(node, given, where)
            if isinstance(node, (ast.Name, ast.Attribute)) and field not in FLAGS:
                _no_truth(node, given, where)
        except Missing:
            continue
        if not 0 <= value <= most:
            shown = value if abs(value) < 10**20 else f"{'-' * (value < 0)}1e{len(str(abs(value))) - 1} or so"
            raise UserError(f"{where}: {expression} is {shown}; a number from 0 to {most:,}")
        if field == "head_dim" and isinstance(node, ast.BinOp) and isinstance(node.op, ast.FloorDiv):
            _divides(node, expressions, given, where)
        return value, expression
    raise UserError(f"{where}: missing {' or '.join(expressions)}")


def _no_truth(node: ast.expr, given: Mapping[str, Any], where: str) -> None:
    """Raises UserError where a file says true or false for a number."""
    if isinstance(value := _entry(node, given), bool):
        raise UserError(f"{where}: {ast.unparse(node)} is {str(value).lower()}; a whole number is needed")


def _divides(node: ast.BinOp, expressions: list[str], given: Mapping[str, Any], where: str) -> None:
    """Raises UserError where heads do not divide the width they share, with the numbers of heads nearest that do."""
    width, heads = _value(node.left, given, where), _value(node.right, given, where)
    if not width or width % heads == 0:
        return
    tried = [n for n in range(1, math.isqrt(width) + 1) if width % n == 0]
    legal = sorted({*tried, *(width // n for n in tried)})
    near = sorted(sorted(legal, key=lambda n: abs(math.log(n / heads)))[:4])
    stated = next((key for key in expressions if key.isidentifier()), "")
    raise UserError(
        f"{where}: {ast.unparse(node.left)} {width} does not divide by {ast.unparse(node.right)} {heads}; "
        f"{', '.join(map(str, near))} heads would{f', or state {stated}' if stated else ''}"
    )


def _value(node: ast.expr, given: Mapping[str, Any], where: str) -> int:
    """The whole number an expression stands for. Raises Missing where a key is not there."""
    if isinstance(node, ast.Constant):
        return int(str(node.value))
    if isinstance(node, ast.BinOp):
        left, right = _value(node.left, given, where), _value(node.right, given, where)
        if isinstance(node.op, ast.FloorDiv):
            if not right:
                raise UserError(f"{where}: {ast.unparse(node.right)} is 0; it must be at least 1")
            return left // right
        return {ast.Add: left + right, ast.Sub: left - right, ast.Mult: left * right}[type(node.op)]
    if isinstance(node, ast.Call):
        listed, name = _entry(node.args[0], given), ast.unparse(node.args[0])
        if not isinstance(listed, (list, str)):
            raise UserError(f"{where}: {name} is {str(listed)[:40]!r}; a list or a text is needed")
        return listed.count(ast.literal_eval(node.args[1])) if len(node.args) > 1 else len(listed)
    value = _entry(node, given)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int):
        raise UserError(f"{where}: {ast.unparse(node)} is {str(value)[:40]!r}; a whole number is needed")
    return int(value)


def _entry(node: ast.expr, given: Mapping[str, Any]) -> Any:
    """What stands under a key, or under a key inside another."""
    value: Any = given
    for key in ast.unparse(node).split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
        if value is None:
            raise Missing
    return value


def _check(model: Architecture, keys: Mapping[str, str], where: str) -> None:
    """Raises UserError for sizes that no decoder can have; `keys` are what the file calls them."""
    needed = ["vocab", "hidden", "layers", "heads", "kv_heads", "head_dim"]
    needed += ["ffn"] * (int(dense(model)) > 0) + ["expert_ffn"] * (int(model.experts) > 0)
    for field in needed:
        if not getattr(model, field):
            raise UserError(f"{where}: {keys.get(field, field)} is 0; it must be at least 1")
    if int(model.heads) % int(model.kv_heads):
        raise UserError(f"{where}: {model.kv_heads} key-value heads do not divide {model.heads} heads")
    if int(model.experts) and not 1 <= int(model.topk) <= int(model.experts):
        raise UserError(f"{where}: a token goes to {model.topk} of {model.experts} experts; 1 to {model.experts}")
    if (count := int(parameters(model))) > LARGEST_MODEL:
        raise UserError(f"{where}: its sizes make {count:.3g} parameters; up to {LARGEST_MODEL:.0g} are accepted")


def _name(values: Mapping[str, Any], where: str) -> str:
    """What the file calls the model, or its folder."""
    stated = values.get("_name_or_path")
    if isinstance(stated, str) and stated:
        return stated.rstrip("/").rpartition("/")[2]
    path = Path(where)
    return (path.parent if path.name == "config.json" else path).resolve().name or where
