"""Compressions: the techniques that make a trained model smaller or faster, in their one order, and what a user asks of them.

They are not passes of training: they take a model, samples of what it will read, and are accepted by its metric.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from pydantic import Field, SerializeAsAny, ValidationError, field_validator, model_validator

from burnish import layout
from burnish.config import ModelConfig
from burnish.errors import UserError, nearest
from burnish.mesh import Mesh
from burnish.pruned_sizes import pruned_config
from burnish.section import Section, explain
from burnish.served_slices import check_served
from burnish.techniques import awq, int8, prune
from burnish.tensors import links
from burnish.weight_format import IntWeights, compressed_links, file_bytes, fits, module_of
from burnish.work import Work


@dataclass(frozen=True)
class Compression:
    """A technique: its file, why it comes at its place, the module that writes its tables, whether parts of the model can be
    kept as they were, and whether it works on the processor alone."""

    name: str
    module: ModuleType
    reason: str
    tables: str
    exchanged: bool
    processor: bool = False


COMPRESSIONS: tuple[Compression, ...] = (
    Compression(
        "prune", prune, "first: what is taken out need not be rounded", "burnish.compress.prune_table", exchanged=False
    ),
    Compression(
        "awq",
        awq,
        "last: it makes the files of whatever is left",
        "burnish.compress.awq_table",
        exchanged=True,
        processor=True,
    ),
    Compression(
        "int8", int8, "last: it makes the files of whatever is left", "burnish.compress.int8_table", exchanged=True
    ),
)
# Pairs that do not go together, with the reason a user is told.
REFUSED: dict[frozenset[str], str] = {
    frozenset({"awq", "int8"}): "a file has matrices of one kind; leave one of the two out"
}
# What goes by another name here, so that whoever asks for it is told.
ELSEWHERE: dict[str, str] = {
    "rtn": "rounding to nearest is awq with method=rtn",
    "smoothquant": "it is part of int8, as smooth=search or a strength",
    "int4": "weights of 4 bits are awq, with method=rtn if they shall only be rounded",
    "w4a16": "weights of 4 bits are awq",
    "w8a8": "weights and activations of 8 bits are int8",
}
SHARD_BYTES = 5 * 2**30  # of a weight file
NAMES = tuple(one.name for one in COMPRESSIONS)
_DROP = re.compile(r"(-?\d+(?:\.\d+)?) *(%|percent|points?|)")


class Compress(Section):
    """What is done to a trained model, and what it may lose. Nothing is done without a `technique`.

    `calibrate`: text that activations are looked at on; `text`: that it is judged on, or `task`: labelled examples. `rows` of
    `length` tokens calibrate, `tokens` judge. `max_drop`: percent of a perplexity, points of an accuracy; None accepts all,
    less than 0 asks for a gain. `fallback` mixed keeps the fewest parts as they were so that the budget is met. `settings`: by
    technique. `reader`: the server that shall read the folder, on `tp` cards (None: in a recipe those of parallel.tp, else one).
    """

    technique: tuple[str, ...] = ()
    settings: dict[str, SerializeAsAny[Section]] = Field(default_factory=dict)
    calibrate: tuple[str, ...] = ()
    text: tuple[str, ...] = ()
    task: str | None = None
    metric: str | None = None
    max_drop: float | None = None
    fallback: Literal["refuse", "mixed"] = "refuse"
    sensitivity: bool = False
    rows: int = Field(default=128, ge=1)
    length: int = Field(default=512, ge=2)
    tokens: int = Field(default=16384, ge=64)
    text_field: str = "text"  # of .jsonl and .parquet files
    tp: int | None = Field(default=None, ge=1, le=1024)
    reader: Literal["vllm"] | None = None
    state: Path | None = None  # where a search goes on from after a kill; None: the cache

    @property
    def used(self) -> bool:
        """Whether anything is done."""
        return bool(self.technique)

    @field_validator("technique", "calibrate", "text", mode="before")
    @classmethod
    def _some(cls, value: Any) -> Any:
        if value is None:
            return ()
        return tuple(part for part in value.split(",") if part) if isinstance(value, str) else value

    @field_validator("max_drop", mode="before")
    @classmethod
    def _drop(cls, value: Any) -> Any:
        """A number, with or without what it is a number of."""
        if not isinstance(value, str):
            return value
        found = _DROP.fullmatch(value.strip())
        if found is None:
            raise ValueError('a drop is a number, such as "2%" or "0.5 points"')
        return float(found[1])

    @model_validator(mode="before")
    @classmethod
    def _known(cls, values: Any) -> Any:
        """Settings become the `Config` of the technique they name; a technique that has some is used."""
        if not isinstance(values, dict) or not isinstance(values.get("settings", {}), dict):
            return values
        return values | {"settings": {name: _config(name, given) for name, given in values.get("settings", {}).items()}}

    @model_validator(mode="after")
    def _together(self) -> Compress:
        for name in self.technique:
            named(name)
        if twice := next((name for name in self.technique if self.technique.count(name) > 1), None):
            raise ValueError(f"{twice} is named twice")
        for pair, reason in REFUSED.items():
            if pair <= set(self.technique):
                raise ValueError(f"{' and '.join(sorted(pair))} do not go together: {reason}")
        if left := sorted(self.settings.keys() - set(self.technique)):
            raise ValueError(f"settings of {left[0]}, which is not in technique; name it there too")
        return self

    def chosen(self) -> list[tuple[Compression, Any]]:
        """The techniques asked for with their settings, in the order they are applied."""
        used = [one for one in COMPRESSIONS if one.name in self.technique]
        return [(one, self.settings.get(one.name) or one.module.Config()) for one in used]


def named(name: str) -> Compression:
    """A technique by its name. Raises ValueError saying how it is called here, or naming the nearest."""
    found = next((one for one in COMPRESSIONS if one.name == name), None)
    if found is None:
        raise ValueError(f"no technique {name!r}; {ELSEWHERE.get(name.lower()) or nearest(name, NAMES)}")
    return found


def _config(name: str, given: Any) -> Any:
    kind = named(name).module.Config
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        raise explain(error, kind, name) from None


def asked(values: Mapping[str, Any], where: str = "compress") -> Compress:
    """Settings as a user gives them. Raises UserError with one line."""
    try:
        return Compress.model_validate(values)
    except ValidationError as error:
        said = str(explain(error, Compress, where))
        raise UserError(
            said.replace(f"{where}: compress: ", f"{where}: ", 1)
        ) from None  # what no single key is at fault of


@dataclass(frozen=True)
class Planned:
    """What files a compressed decoder will have, where no part has to be kept as it was; `notes` on what will read them."""

    model: ModelConfig
    scheme: IntWeights | None
    keep: tuple[str, ...]
    dtype: str
    notes: tuple[str, ...] = ()

    @property
    def bytes(self) -> int:
        """Of its weight files."""
        if self.scheme is None:
            return layout.weight_bytes(self.model, self.dtype, False, SHARD_BYTES)
        return file_bytes(self.model, self.scheme, SHARD_BYTES, self.kept)

    @property
    def kept(self) -> frozenset[str]:
        """The modules that `keep` leaves alone."""
        return frozenset(name for link in links(self.model) if (name := module_of(link)) and fits(name, self.keep))


def planned(compress: Compress, model: ModelConfig, dtype: str, work: Work) -> Planned:
    """What is asked of a decoder, checked before any work.

    `work` is the description of a row, `dtype` that of files which a technique does not decide. Raises as the techniques do,
    and UserError for a family without such files and for what is asked to read them and cannot.
    """
    mesh, made = Mesh(), Planned(model, None, (), dtype)
    for technique, config in compress.chosen():
        technique.module.check(config, work, mesh)
        if technique.name == "prune":
            made = replace(made, model=pruned_config(made.model, prune.decide(config, work)))
        work = technique.module.predict(config, work, mesh)
        scheme, keep = getattr(config, "scheme", None), tuple(getattr(config, "keep", ()))
        made = replace(made, scheme=scheme, keep=keep, dtype=getattr(config, "dtype", made.dtype))
    if made.scheme is not None:
        tuple(compressed_links(made.model, made.kept))
        notes = check_served(made.model, made.scheme, made.keep, compress.tp or 1, compress.reader)
        made = replace(made, notes=notes)
    return made


def by_technique(names: Sequence[str], changes: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """`group` -> 64 and `awq.group` -> 64 as settings of a technique; the first form where only one is used.

    Raises UserError naming the technique that there is not, or the key that is nobody's.
    """
    try:
        fields = {name: named(name).module.Config.model_fields for name in names}
    except ValueError as error:
        raise UserError(f"compress: {error}") from None
    found: dict[str, dict[str, Any]] = {}
    for key, value in changes.items():
        name, _, inner = key.rpartition(".")
        if not name:
            owners = [one for one in names if inner in fields[one]]
            if len(owners) != 1:
                known = sorted(key for own in fields.values() for key in own)
                said = f"is a key of {' and '.join(owners)}; write TECHNIQUE.{key}" if owners else nearest(key, known)
                raise UserError(f"{key}: {said}")
            name = owners[0]
        found.setdefault(name, {})[inner] = value
    return found
