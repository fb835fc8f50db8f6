"""Machine file: a cluster of one's own as TOML, with a chip's figures where it is none of the known ones."""

from __future__ import annotations

import json
import tomllib
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from burnish.errors import UserError, nearest
from burnish.hardware import GIB, Chip, chip_for, chip_of, generations
from burnish.interconnect import Link

WHOLE = ("nodes", "per_node", "domain")
FIELDS = ("name", "chip", *WHOLE, "link", "network")
MOST = 10**7
# What a figure may be: wider than any machine there has been, narrow enough that no time or size overflows.
NUMBERS = {"memory_gib": (1e-3, 1e6), "bandwidth": (1e6, 1e17), "launch": (1e-10, 1.0)}
RATE = (1e6, 1e20)  # FLOP/s of a format
LINK_NUMBERS = {"bandwidth": (1e4, 1e16), "latency": (1e-10, 60.0)}
# Where a file states no generation, the newest whose formats it has stands in; rates are shares of a generation.
FORMED = (("fp4", "blackwell"), ("fp8", "hopper"), ("bf16", "ampere"), ("fp16", "turing"))
FORMATS = ("fp32", "tf32", "bf16", "fp16", "fp8", "fp4")
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


def _within(value: Any, bounds: tuple[float, float], where: str) -> float:
    least, most = bounds
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not least <= value <= most:
        shown = f"{value:.4g}" if isinstance(value, float) else repr(value)[:40]
        raise UserError(f"{where} is {shown}; a number from {least:g} to {most:g}")
    return float(value)


def _words(value: dict[str, Any], where: str) -> dict[str, str]:
    """Names of a chip of one's own; its generation must be one that rates are known of, or none."""
    made = {key: _text(value[key], f"{where}: chip.{key}") for key in WORDS if key in value}
    known = generations()
    if (stated := made.get("architecture", "")) and stated not in known:
        near = nearest(stated, known)
        said = near if near.startswith("known") else f"{near} known: {', '.join(known)}"
        raise UserError(f"{where}: chip.architecture {stated[:40]!r}: no generation of that name; {said}")
    return made


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
    row: dict[str, Any] = dict(_words(value, where))
    row |= {key: _within(value[key], NUMBERS[key], f"{where}: chip.{key}") for key in NUMBERS if key in value}
    if not isinstance(value["flops"], dict) or not value["flops"]:
        raise UserError(f"{where}: chip.flops is {value['flops']!r}; a table of formats such as {{ bf16 = 1e14 }}")
    _known(value["flops"], FORMATS, f"{where}: chip.flops")
    row["flops"] = {form: _within(rate, RATE, f"{where}: chip.flops.{form}") for form, rate in value["flops"].items()}
    if "threads" in value:
        row["threads"] = _whole(value["threads"], f"{where}: chip.threads")
    if not row.get("architecture"):
        formed = (name for form, name in FORMED if form in row["flops"])
        row["architecture"] = "cpu" if "threads" in row else next(formed, "turing")
    return chip_of({"name": where, "per_node": 1, **row})


def _link(value: Any, where: str) -> str | Link:
    if isinstance(value, str):
        return value
    if not isinstance(value, dict) or "bandwidth" not in value:
        raise UserError(f"{where} is {value!r}; the name of a known link, or a table with bandwidth (byte/s a chip)")
    _known(value, LINK_FIELDS, where)
    filled = {**LINK_FIELDS, "name": where.rpartition(": ")[2], **value}
    names = {key: _text(filled[key], f"{where}.{key}") for key in ("name", "source")}
    rates = {key: _within(filled[key], bounds, f"{where}.{key}") for key, bounds in LINK_NUMBERS.items()}
    return Link(names["name"], rates["bandwidth"], rates["latency"], names["source"])
