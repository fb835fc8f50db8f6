"""Everything that a GGUF file of a configuration says before its weights, and the exact size of the file, without torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from burnish.errors import UserError, nearest
from burnish.gguf_files import rope
from burnish.gguf_files.layout import Entry, entries, family_of, padded, sizes, storages, unfit
from burnish.gguf_files.settings import Field, write_config
from burnish.gguf_files.vocabulary import write_vocabulary
from burnish.tables.gguf import MAGIC, WRITTEN
from burnish.tables.gguf_families import Architecture

if TYPE_CHECKING:
    from burnish.load.checkpoint import TokenizerFiles

_BYTES = {"u32": 4, "i32": 4, "f32": 4, "bool": 1}


@dataclass(frozen=True)
class Contents:
    """A file before it is written: its metadata, its tensors in order, and what each of these is stored as.

    `wider` names the tensors whose rows fit no block of the format, `notes` what llama.cpp will do otherwise. `factors`
    are those of a rope scaling that the file keeps as a tensor.
    """

    family: Architecture
    fields: tuple[Field, ...]
    entries: tuple[Entry, ...]
    storages: Mapping[str, str]
    wider: tuple[str, ...]
    notes: tuple[str, ...]
    factors: np.ndarray | None = None

    @property
    def bytes(self) -> int:
        """The size of the file."""
        head = len(MAGIC) + 4 + 8 + 8 + sum(_field_bytes(*one) for one in self.fields)
        # a name, how many dimensions, each of them, the storage, the place
        head += sum(_text_bytes(entry.name) + 4 + 8 * len(entry.stored) + 4 + 8 for entry in self.entries)
        return padded(head) + sum(padded(entry.bytes(self.storages[entry.name])) for entry in self.entries)


def contents(config: Mapping[str, Any], form: str, tokenizer: TokenizerFiles | None, where: str) -> Contents:
    """What a file in the format `form` will hold for a config.json and a tokenizer.

    Raises UserError naming the key: for an unknown format or family, a setting that is missing, or one that the format
    cannot say.
    """
    if form not in WRITTEN:
        raise UserError(f"format {form!r}: {nearest(form, WRITTEN)}")
    family = family_of(config, where)
    fields: list[Field] = [("general.architecture", "string", family.gguf), *write_config(config, family, form, where)]
    if tokenizer is not None:
        fields += write_vocabulary(tokenizer, config, where)
    factors = _factors(config, family, where)
    made = entries(family, config, where, factors is not None)
    notes = []
    if any(key.endswith("attention.sliding_window") for key, _, _ in fields):
        notes.append(
            "llama.cpp lets every token of this architecture see all before it: the sliding window is not applied"
        )
    if tokenizer is None:
        notes.append("without a tokenizer llama.cpp does not load the file")
    chosen, wider = storages(made, form), tuple(unfit(made, form))
    return Contents(family, tuple(fields), tuple(made), chosen, wider, tuple(notes), factors)


def _factors(config: Mapping[str, Any], family: Architecture, where: str) -> np.ndarray | None:
    theta, scaling = rope.of_config(config)
    if not family.rotary or scaling is None or scaling["rope_type"] != "llama3":
        return None
    width = sizes(family, config, where)["head_dim"]
    return rope.factors(scaling, theta or family.defaults["rope_theta"], width, where)


def gguf_bytes(config: Mapping[str, Any], form: str, tokenizer: TokenizerFiles | None = None) -> int:
    """Bytes of the file that export writes for this config.json, format and tokenizer. Raises UserError as `contents`."""
    return contents(config, form, tokenizer, "config.json").bytes


def _field_bytes(key: str, kind: str, value: Any) -> int:
    return _text_bytes(key) + 4 + _value_bytes(kind, value)


def _value_bytes(kind: str, value: Any) -> int:
    if kind == "string":
        return _text_bytes(value)
    if kind.startswith("["):
        items: Iterable[Any] = value
        return 4 + 8 + sum(_value_bytes(kind[1:-1], item) for item in items)
    return _BYTES[kind]


def _text_bytes(text: str) -> int:
    return 8 + len(text.encode("utf-8"))
