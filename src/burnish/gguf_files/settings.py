"""A configuration as config.json has it, from the metadata of a GGUF file and back."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from burnish.errors import UserError
from burnish.gguf_files import rope
from burnish.gguf_files.header import Header
from burnish.gguf_files.layout import FACTORS, complete, sizes, whole_number
from burnish.tables.gguf import FLOATS, QUANTIZATION_VERSION, STORAGES, WRITTEN
from burnish.tables.gguf_families import FAMILIES, NEUTRAL, Architecture, Setting

Field = tuple[str, str, Any]  # key, type as the tables name it, value
IDS = {"bos": "bos_token_id", "eos": "eos_token_id", "padding": "pad_token_id"}  # GGUF's word: config.json's key


def family_of_file(header: Header) -> Architecture:
    """Which family's settings and tensors a file holds. Raises UserError naming the architectures that are read."""
    name = header.metadata.get("general.architecture")
    if "split.count" in header.metadata and header.metadata["split.count"] not in (0, 1):
        raise header.refuse("split.count says that this is one part of several; join them into one file first")
    rows = [family for family in FAMILIES if family.gguf == name]
    if not rows:
        known = ", ".join(dict.fromkeys(family.gguf for family in FAMILIES))
        said = "missing" if name is None else repr(name)[:60]
        raise header.refuse(f"general.architecture is {said}; these are read: {known}")
    return next(row for row in rows if not row.marks or header.metadata.get(f"{name}.{row.marks}"))


def read_config(header: Header, family: Architecture) -> dict[str, Any]:
    """The content of config.json. Raises UserError naming the key that is missing, odd, or not known to be harmless."""
    own = {
        key.removeprefix(family.gguf + "."): value
        for key, value in header.metadata.items()
        if key.startswith(family.gguf + ".")
    }
    for key, harmless in NEUTRAL.items():
        if key in own and own[key] not in harmless:
            raise header.refuse(f"{family.gguf}.{key} is {str(own[key])[:40]}, which is not read; {harmless[0]} works")
    config: dict[str, Any] = {"model_type": family.model_type, "architectures": [family.architecture], **family.fixed}
    for setting in family.settings:
        value = _setting(header, family, setting, own.get(setting.key))
        if value is not None:
            config[setting.config] = value
    if (window := own.get("attention.sliding_window")) and not _windowed(family):
        raise header.refuse(
            f"{family.gguf}.attention.sliding_window is {str(window)[:40]}; none is read for this model"
        )
    config["vocab_size"] = _vocab(header, family, own)
    config |= {flag: shown in header.tensors for flag, shown in family.flags.items() if flag != "untied"}
    config["tie_word_embeddings"] = family.flags["untied"] not in header.tensors
    found = sizes(family, config, str(header.path))
    if family.rotary:
        _read_rotary(header, family, own, config, found)
    for word, key in IDS.items():
        if (number := token_id(header, word, config["vocab_size"])) is not None:
            config[key] = number
    kinds = {tensor.storage for tensor in header.tensors.values() if len(tensor.shape) > 1}
    config["torch_dtype"] = FLOATS[kinds.pop()] if len(kinds) == 1 and kinds <= FLOATS.keys() else "float32"
    return config


def token_id(header: Header, word: str, vocab: int) -> int | None:
    """The id of a special token, None where the file names none. Raises UserError for one outside the vocabulary."""
    key = f"tokenizer.ggml.{word}_token_id"
    number = header.metadata.get(key)
    if number is not None and (type(number) is not int or not 0 <= number < vocab):
        raise header.refuse(f"{key} is {str(number)[:40]}; ids from 0 to {vocab - 1} have a row")
    return number


def _setting(header: Header, family: Architecture, setting: Setting, value: Any) -> int | float | None:
    key = f"{family.gguf}.{setting.key}"
    if value is None or (value == 0 and not setting.required):
        if setting.required:
            raise header.refuse(f"{key} is missing; a {family.gguf} model needs it")
        return None
    if setting.type == "u32":
        return whole_number(value, key, str(header.path))
    if type(value) is not float or not 0 < value < math.inf:
        raise header.refuse(f"{key} is {str(value)[:40]}; a number above 0 is needed")
    return shortest(value)


def shortest(value: float) -> float:
    """The number with the fewest digits that is the same in float32, as the writer's config.json had it."""
    return float(str(np.float32(value)))


def _vocab(header: Header, family: Architecture, own: Mapping[str, Any]) -> int:
    embedding = header.tensors.get("token_embd.weight")
    if embedding is None:
        raise header.refuse("token_embd.weight is missing")
    rows = whole_number(embedding.shape[0], "the length of token_embd.weight", str(header.path))
    if (said := own.get("vocab_size", rows)) != rows:
        raise header.refuse(f"{family.gguf}.vocab_size is {str(said)[:40]}, but token_embd.weight has {rows} rows")
    return rows


def _read_rotary(
    header: Header, family: Architecture, own: Mapping[str, Any], config: dict[str, Any], found: Mapping[str, int]
) -> None:
    for key in ("rope.dimension_count", "attention.value_length"):
        if (said := own.get(key, found["head_dim"])) != found["head_dim"]:
            raise header.refuse(f"{family.gguf}.{key} is {str(said)[:40]}; {found['head_dim']}, a whole head, is read")
    config["head_dim"], config["num_key_value_heads"] = found["head_dim"], found["kv_heads"]
    config.setdefault("rope_theta", 10000.0)  # what llama.cpp takes where the key is missing
    scaling = rope.of_settings(own, found["positions"])
    if isinstance(scaling, str):
        raise header.refuse(f"{family.gguf}.{scaling}")
    if FACTORS in header.tensors and "llama3" in family.ropes:
        if scaling is not None:
            raise header.refuse(f"{FACTORS} stands beside {family.gguf}.{rope.PREFIX}type; one of the two is read")
        scaling = _read_factors(header, own, config, found)
    config["rope_scaling"] = scaling


def _read_factors(
    header: Header, own: Mapping[str, Any], config: Mapping[str, Any], found: Mapping[str, int]
) -> dict[str, Any]:
    place = header.tensors[FACTORS]
    if place.storage != "F32" or place.shape != (found["head_dim"] // 2,):
        raise header.refuse(
            f"{FACTORS} is {place.storage} of the shape {place.shape}; F32 of ({found['head_dim'] // 2},) is read"
        )
    given = np.fromfile(header.path, "<f4", count=place.shape[0], offset=place.offset)
    original = own.get(rope.PREFIX + "original_context_length")
    known = original if type(original) is int and original > 0 else None
    if len(given) != place.shape[0] or not (
        scaling := rope.of_factors(given, config["rope_theta"], found["head_dim"], known)
    ):
        raise header.refuse(
            f"{FACTORS} holds factors that no rope_scaling of the type llama3 gives; only those are read"
        )
    return scaling


def write_config(config: Mapping[str, Any], family: Architecture, form: str, where: str) -> list[Field]:
    """Keys of the metadata for a config.json, in the order in which they are written.

    Raises UserError for a setting that is missing, or that says something no key of the format can say.
    """
    full = complete(family, config)
    for key, meant in family.fixed.items():
        if full.get(key, meant) != meant:
            raise UserError(f"{where}: {key} is {full[key]!r}; a GGUF file of {family.model_type} means {meant!r}")
    found, scaling = sizes(family, config, where), None
    written: list[Field] = [("general.type", "string", "model"), ("general.file_type", "u32", WRITTEN[form].file_type)]
    if STORAGES[form].block > 1:
        written.append(("general.quantization_version", "u32", QUANTIZATION_VERSION))
    if family.rotary:
        theta, scaling = rope.of_config(config)
        full["rope_theta"] = theta or full["rope_theta"]
        full["sliding_window"] = _window(full, family, where)
    for setting in family.settings:
        value = found[setting.size] if setting.size else full.get(setting.config)
        if value is None and not setting.required:
            continue
        if setting.type == "u32":
            value = whole_number(value, setting.config, where)
        else:
            value = rope.positive(full, setting.config, where)
        written.append((f"{family.gguf}.{setting.key}", setting.type, value))
    if family.rotary:
        written.append((f"{family.gguf}.attention.value_length", "u32", found["head_dim"]))
        written.append((f"{family.gguf}.rope.dimension_count", "u32", found["head_dim"]))
        for key, value in rope.to_settings(scaling, family.ropes, found["positions"], where).items():
            written.append((f"{family.gguf}.{key}", _type(value), value))
    written.append((f"{family.gguf}.vocab_size", "u32", found["vocab"]))
    return written


def _window(full: Mapping[str, Any], family: Architecture, where: str) -> int | None:
    """The sliding window. Families without a key for one may not say that any layer has one."""
    if _windowed(family):
        return full.get("sliding_window")
    if "sliding_attention" in (full.get("layer_types") or ()):
        raise UserError(f"{where}: layer_types has sliding_attention; a GGUF file of {family.model_type} has no window")
    return None


def _windowed(family: Architecture) -> bool:
    return any(setting.config == "sliding_window" for setting in family.settings)


def _type(value: Any) -> str:
    return {str: "string", float: "f32", int: "u32", bool: "bool"}[type(value)]
