"""Architecture files: the `config.json` of any decoder as an architecture, by a table of what each kind calls its sizes."""

from __future__ import annotations

import ast
import json
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from burnish.architecture import Architecture
from burnish.errors import UserError, nearest

MOST = 10**12
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
    found = {field: _size(field, expressions, given, where) for field, expressions in sizes.items()}
    if not found.get("window"):
        found |= {"window": 0, "windowed_layers": 0}
    _check(found, where)
    return Architecture(name=_name(values, where), **found)


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
    raise UserError(f"{where}: model_type {stated[:60]!r} is not known; {nearest(stated, kinds)}")


@cache
def _rules(kind: str) -> tuple[dict[str, list[str]], dict[str, Any]]:
    """A kind's expressions by field and what upstream assumes, those of the kind it is like included."""
    made = table()["decoder"][kind]
    sizes, upstream = _rules(made["like"]) if "like" in made else ({}, {})
    return {**sizes, **made.get("size", {})}, {**upstream, **made.get("upstream", {})}


def _size(field: str, expressions: list[str], given: Mapping[str, Any], where: str) -> int:
    for expression in expressions:
        try:
            value = _value(ast.parse(expression, mode="eval").body, given, where)
        except Missing:
            continue
        if not 0 <= value <= MOST:
            raise UserError(f"{where}: {expression} is {value}; a {field} from 0 to {MOST}")
        return value
    raise UserError(f"{where}: missing {' or '.join(expressions)}")


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


def _check(found: dict[str, int], where: str) -> None:
    """Raises UserError for sizes that no decoder can have."""
    for field in ("vocab", "hidden", "layers", "heads", "kv_heads", "head_dim"):
        if found[field] < 1:
            raise UserError(f"{where}: {field} is {found[field]}; at least 1")
    if found["heads"] % found["kv_heads"]:
        raise UserError(f"{where}: {found['kv_heads']} key-value heads do not divide {found['heads']} heads")
    experts = found.get("experts", 0)
    if experts and not 1 <= found["topk"] <= experts:
        raise UserError(f"{where}: a token goes to {found['topk']} of {experts} experts; 1 to {experts}")


def _name(values: Mapping[str, Any], where: str) -> str:
    """What the file calls the model, or its folder."""
    stated = values.get("_name_or_path")
    if isinstance(stated, str) and stated:
        return stated.rstrip("/").rpartition("/")[2]
    path = Path(where)
    return (path.parent if path.name == "config.json" else path).resolve().name or where
