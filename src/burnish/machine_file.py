"""Machine file: a cluster of one's own as TOML, with a chip's figures where it is none of the known ones."""

from __future__ import annotations

import json
import tomllib
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from burnish.errors import UserError, nearest
from burnish.hardware import GIB, Chip, chip_for, chip_of
from burnish.interconnect import Link

WHOLE = ("nodes", "per_node", "domain")
FIELDS = ("name", "chip", *WHOLE, "link", "network")
MOST = 10**7
NUMBERS = ("memory_gib", "bandwidth", "launch")
WORDS = ("name", "source", "architecture", "calibrated")
CHIP_FIELDS = (*WORDS, *NUMBERS, "flops", "threads")
LINK_FIELDS = {"name": "", "bandwidth": 0.0, "latency": 2e-5, "source": ""}


@dataclass(frozen=True)
class Machine:
    """What a file says; 0 or empty where it says nothing."""

    name: str
    chip: Chip
    nodes: int = 1
    per_node: int = 0
    domain: int = 0
    link: str | Link = ""
    network: str | Link = ""


def read(path: Path) -> Machine:
    """Read a file. Raises UserError naming the file, the key and which values work."""
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"cluster {path}: no such file; burnish hardware probe --save {path} writes one") from None
    except (OSError, ValueError) as error:
        raise UserError(f"cluster {path}: not readable as TOML ({' '.join(str(error).split())})") from None
    _known(values, FIELDS, f"{path}")
    if "chip" not in values:
        raise UserError(f"{path}: chip is missing; name one, such as 'h100-sxm', or give its figures as [chip]")
    made = Machine(_text(values.get("name", path.name), f"{path}: name"), _chip(values["chip"], str(path)))
    given: dict[str, Any] = {key: _whole(values[key], f"{path}: {key}") for key in WHOLE if key in values}
    given |= {key: _link(values[key], f"{path}: {key}") for key in ("link", "network") if key in values}
    return replace(made, **given)


def text(chip: Chip, per_node: int, link: Link | None = None) -> str:
    """The content of a file for a node of `per_node` such chips, joined by `link` where that was measured."""
    figures: dict[str, Any] = {"name": chip.name, "memory_gib": round(chip.memory / GIB, 2)}
    figures |= {"architecture": chip.architecture, "bandwidth": chip.bandwidth, "launch": chip.launch}
    figures |= {"threads": chip.threads, "calibrated": chip.calibrated, "source": chip.source}
    lines = [f"nodes = 1\nper_node = {per_node}"]
    named = {"link": "" if link else chip.link, "network": chip.network}
    lines += [f"{key} = {json.dumps(name)}" for key, name in named.items() if name]
    if link:
        lines += ["", "[link]", *(f"{key} = {_value(value)}" for key, value in asdict(link).items() if value)]
    lines += ["", "[chip]", *(f"{key} = {_value(value)}" for key, value in figures.items() if value)]
    lines += [f"flops = {{ {', '.join(f'{form} = {_value(rate)}' for form, rate in chip.flops.items())} }}"]
    return "\n".join(lines) + "\n"


def _value(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else json.dumps(value, ensure_ascii=False)


def _known(values: dict[str, Any], fields: Any, where: str) -> None:
    for key in values:
        if key not in fields:
            raise UserError(f"{where}: unknown key {key!r}; {nearest(key, fields)}")


def _whole(value: Any, where: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MOST:
        raise UserError(f"{where} is {value!r}; a whole number from 1 to {MOST}")
    return value


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise UserError(f"{where} is {value!r}; a text in quotes")
    return value


def _positive(value: Any, where: str) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value < float("inf"):
        raise UserError(f"{where} is {value!r}; a number above 0")
    return float(value)


def _chip(value: Any, where: str) -> Chip:
    """A known chip by name, or one of its own figures."""
    if isinstance(value, str):
        try:
            return chip_for(value)
        except UserError as error:
            raise UserError(f"{where}: {error}") from None
    if not isinstance(value, dict):
        raise UserError(f"{where}: chip is {value!r}; a name in quotes or a table [chip]")
    _known(value, CHIP_FIELDS, f"{where}: chip")
    for key in ("memory_gib", "bandwidth", "flops"):
        if key not in value:
            raise UserError(f"{where}: chip.{key} is missing; [chip] needs memory_gib, bandwidth and flops")
    row: dict[str, Any] = {key: _text(value[key], f"{where}: chip.{key}") for key in WORDS if key in value}
    row |= {key: _positive(value[key], f"{where}: chip.{key}") for key in NUMBERS if key in value}
    if not isinstance(value["flops"], dict) or not value["flops"]:
        raise UserError(f"{where}: chip.flops is {value['flops']!r}; a table of formats such as {{ bf16 = 1e14 }}")
    row["flops"] = {form: _positive(rate, f"{where}: chip.flops.{form}") for form, rate in value["flops"].items()}
    if "threads" in value:
        row["threads"] = _whole(value["threads"], f"{where}: chip.threads")
    return chip_of({"name": where, "per_node": 1, **row})


def _link(value: Any, where: str) -> str | Link:
    if isinstance(value, str):
        return value
    if not isinstance(value, dict) or "bandwidth" not in value:
        raise UserError(f"{where} is {value!r}; the name of a known link, or a table with bandwidth (byte/s a chip)")
    _known(value, LINK_FIELDS, where)
    filled = {**LINK_FIELDS, "name": where.rpartition(": ")[2], **value}
    names = {key: _text(filled[key], f"{where}.{key}") for key in ("name", "source")}
    rates = {key: _positive(filled[key], f"{where}.{key}") for key in ("bandwidth", "latency")}
    return Link(names["name"], rates["bandwidth"], rates["latency"], names["source"])
