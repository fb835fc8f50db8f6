"""What every verb that opens an engine asks of its user: how a model is held, and how much memory it may have."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from burnish.errors import UserError

if TYPE_CHECKING:
    from burnish.serve.opening import Settings

SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(B|KiB|MiB|GiB|TiB|KB|MB|GB|TB)?", re.IGNORECASE)
LEAST = 2**20  # bytes that may be given without a unit
UNITS = {
    "b": 1,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
}
CHOICES = {
    "runner": ("auto", "torch", "onnxruntime"),
    "weights": ("float", "q4"),
    "head": ("auto", "float32", "int8", "int4"),
    "kv": ("float", "int8"),
}
SETTINGS = ("runner", "weights", "head", "kv", "exact")


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """How a model is held in memory and computed."""

    memory: Annotated[str, Option(help="For keys, values and steps, beside the weights: 512MiB, 4GiB.")] = "1GiB"
    runner: Annotated[str, Option(help="auto, torch or onnxruntime.")] = "auto"
    weights: Annotated[str, Option(help="float as they are, or q4: blocks of 4 bits.")] = "float"
    head: Annotated[str, Option(help="The vocabulary's matrix of scores: auto, float32, int8, int4.")] = "auto"
    kv: Annotated[str, Option(help="Keys and values: float, or int8: four times as many in the memory.")] = "float"
    calibrate: Annotated[
        list[str] | None,
        Option(help="Text to fit --kv int8 and --head int4 to, such as they will see; may be repeated."),
    ] = None
    exact: Annotated[bool, Option(help="The same last digits in any company, for some of the speed.")] = False


def check_engine(options: EngineOptions) -> int:
    """Bytes of memory that are asked for. Raises UserError for an option that has a value it cannot have."""
    check_choices(vars(options))
    if options.calibrate and options.kv != "int8" and options.head != "int4":
        raise UserError("--calibrate: nothing is fitted to a text but --kv int8 and --head int4; ask for one of them")
    return bytes_of(options.memory)


def engine_settings(options: EngineOptions, **more: Any) -> Settings:
    """The settings of an engine that options and `more` ask for, on all cores there are."""
    from burnish.serve.opening import Settings

    given = vars(options)
    chosen: dict[str, Any] = {name: given[name] for name in SETTINGS}
    texts = tuple(options.calibrate or ())
    return Settings(bytes_of(options.memory), threads=threads(), calibrate=texts, **chosen, **more)


def threads() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def check_choices(given: Mapping[str, Any]) -> None:
    """Raises UserError for an option that has a value it cannot have."""
    for key, legal in CHOICES.items():
        if given[key] not in legal:
            raise UserError(f"--{key} {given[key]}: use {' or '.join(legal)}")


def bytes_of(text: str) -> int:
    """A size such as 512MiB. Raises UserError for what is none, and for a number so small that its unit was forgotten."""
    found = SIZE.fullmatch(text.strip())
    if found is None or (size := int(float(found[1]) * UNITS[(found[2] or "B").lower()])) < (1 if found[2] else LEAST):
        raise UserError(f"--memory {text}: a size is a number and a unit, such as 512MiB or 4GiB")
    return size
