"""Presets: published decoders by name, however the name is written."""

from __future__ import annotations

import difflib
import re
import tomllib
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

from burnish import architecture_files, hub_config
from burnish.architecture import Architecture
from burnish.errors import UserError

# Endings that say how a model was trained or is stored, not what it is.
ENDINGS = re.compile(r"[-_ ]?(instruct|chat|base|hf|thinking|it|pt|dpo|sft|awq|gptq|fp8|bf16|4-bit|8-bit|moe|\d{4})$")
PATH = re.compile(r"$|[./~\\]|[^/]*/[^/]*/")  # what can be nothing but a path, or is nothing at all
MTP = re.compile(r"\(\s*w/(o?)\s*mtp\s*\)")
FIELDS = {field.name for field in fields(Architecture)}


@dataclass(frozen=True)
class Preset:
    """A published decoder; parameter counts in billions as its source gives them, None where it gives none."""

    model: Architecture
    source: str
    total: float | None
    active: float | None
    also: tuple[str, ...]
    hub: tuple[str, ...]


@cache
def presets() -> dict[str, Preset]:
    """The presets by name."""
    path = Path(__file__).parent / "tables" / "presets.toml"
    made: dict[str, Preset] = {}
    for series in tomllib.loads(path.read_text(encoding="utf-8")).values():
        for name, row in series["models"].items():
            values: dict[str, Any] = {**series["common"], **row}
            sizes = {key: value for key, value in values.items() if key in FIELDS}
            made[name] = Preset(
                Architecture(name=name, **sizes),
                series["source"],
                values.get("total"),
                values.get("active"),
                tuple(values.get("also", ())),
                tuple(values.get("hub", ())),
            )
    return made


@cache
def _names() -> dict[str, str]:
    """Every plain spelling -> the preset it means."""
    found: dict[str, str] = {}
    for name, row in presets().items():
        for written in (name, *row.also, *row.hub):
            found[plain(written)] = name
    return found


def plain(name: str) -> str:
    """A name without case and punctuation; a point between digits stays, so that 1.7B is not 17B."""
    return re.sub(r"(?<!\d)\.|\.(?!\d)|[^a-z0-9./]", "", name.lower())


def architecture_of(text: str) -> Architecture:
    """The decoder that a text means: a `config.json` or a folder with one, a preset's name, or a hub name ORG/MODEL.

    Raises UserError, in one line, where it means none.
    """
    given = text.strip()
    path = Path(given)
    if given and (path.is_file() or (path / "config.json").is_file()):
        return architecture_files.read(path)
    found = lookup(given) if given else None
    if found is not None:
        return preset(given)
    if path.is_dir() or given.endswith(".json") or PATH.match(given):
        inside = "no config.json there" if path.is_dir() else "not a regular file"
        there = inside if given and path.exists() else "no such file"
        raise UserError(f"model {text!r}: {there}; give the path of a config.json, or a preset such as llama-3-8b")
    if hub_config.NAME.fullmatch(given):
        return architecture_files.read(hub_config.fetch(given, f"or use a preset ({_nearest(given.lower())})"))
    raise UserError(
        f"model {text!r}: no preset, file or hub name (ORG/MODEL); {_nearest(given.lower())}; "
        "or give the path of a config.json"
    )


def preset(name: str) -> Architecture:
    """The decoder of a name; what stands in brackets is left out, except whether further-token layers are meant.

    Raises UserError naming the nearest presets.
    """
    lowered = name.lower().strip()
    found = lookup(lowered)
    if found is None:
        raise UserError(f"model {name!r}: no preset of that name; {_nearest(lowered)}")
    model = presets()[found].model
    if (asked := MTP.search(lowered)) is not None:
        return replace(model, mtp=0 if asked[1] else max(1, int(model.mtp)))
    return model


def lookup(name: str) -> str | None:
    """The preset that a name means, None if there is none."""
    bare = re.sub(r"\([^)]*\)?", " ", name.lower()).strip()
    while True:
        if (found := _names().get(plain(bare))) is not None:
            return found
        shorter = ENDINGS.sub("", bare).strip()
        if shorter == bare:
            return None
        bare = shorter


def _nearest(name: str, count: int = 3) -> str:
    known = _names()
    close = difflib.get_close_matches(plain(name.split("/")[-1]), known, n=12, cutoff=0.5)
    names = list(dict.fromkeys(known[key] for key in close))[:count]
    return f"near ones: {', '.join(names)}" if names else f"there are {len(presets())}, such as llama-3-8b and qwen3-8b"
