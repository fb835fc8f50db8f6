"""A model folder as Hugging Face lays it out: config.json, weights in one file or in shards, tokenizer, chat template.

Nothing here knows a family: tensors are listed as they are stored, and read when somebody asks for one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from burnish.errors import UserError
from burnish.layout import INDEX, SINGLE
from burnish.load import pickle_file, safetensors_file
from burnish.load.checkpoint import Checkpoint, StoredTensor, TokenizerFiles
from burnish.load.integer_weights import with_integers
from burnish.load.json_object import read_object
from burnish.load.regular_file import inside, text_of, there

CONFIG, GENERATION = "config.json", "generation_config.json"
TOKENIZER, TOKENIZER_SETTINGS = "tokenizer.json", "tokenizer_config.json"
TEMPLATE, TEMPLATES = "chat_template.jinja", "additional_chat_templates"
PICKLES = (".bin", ".pt", ".pth")
# Largest size (bytes) that is read of each kind of text; the largest published ones are a third of these.
MOST_SETTINGS, MOST_INDEX, MOST_TOKENIZER = 16 * 2**20, 128 * 2**20, 256 * 2**20


@dataclass(frozen=True)
class _Weights:
    """A kind of weight files: the single one, the index of shards, how shards end, and what lists the tensors of one."""

    single: str
    index: str
    suffix: str
    read: Callable[[Path], dict[str, StoredTensor]]


SAFETENSORS = _Weights(SINGLE, INDEX, ".safetensors", safetensors_file.stored_tensors)
PICKLE = _Weights("pytorch_model.bin", "pytorch_model.bin.index.json", ".bin", pickle_file.stored_tensors)
KINDS = {"safetensors": SAFETENSORS, "pytorch pickle": PICKLE}  # the first that is there is read


def open_folder(path: str | Path) -> Checkpoint:
    """The checkpoint in a model folder. No weight is read, but every header is held against its file.

    Raises UserError, one line with file and key, for whatever is missing, damaged, cut short, contradicts itself, or
    leads out of the folder. pytorch_model.bin is read where there is no safetensors file, and only if it is plain tensors.
    """
    folder = Path(path)
    try:
        return _opened(folder)
    except OSError as error:
        raise UserError(f"{folder}: cannot be read ({error.strerror or error})") from None


def _opened(folder: Path) -> Checkpoint:
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder; a model folder holds {CONFIG} and {SINGLE}")
    if not there(folder, CONFIG):
        if there(folder, "network.json"):
            raise UserError(f"{folder}: is a network of vision; use it with `burnish predict`")
        raise UserError(f"{folder / CONFIG}: no such file; a model folder holds {CONFIG} and {SINGLE}")
    config = _settings(folder, CONFIG)
    kind, tensors = _tensors(folder)
    return Checkpoint(
        where=str(folder),
        format=kind,
        config=config,
        tensors=with_integers(config, tensors, str(folder)),
        tokenizer=_tokenizer(folder),
        generation=_settings(folder, GENERATION),
    )


def _settings(folder: Path, name: str) -> dict[str, Any]:
    """An optional file of settings; empty where there is none."""
    return read_object(inside(folder, name), MOST_SETTINGS) if there(folder, name) else {}


def _tensors(folder: Path) -> tuple[str, dict[str, StoredTensor]]:
    for name, kind in KINDS.items():
        if there(folder, kind.single):
            return name, _non_empty(kind.read(inside(folder, kind.single)), folder / kind.single)
        if there(folder, kind.index):
            return name, _sharded(folder, kind)
    pickles = sorted(file.name for file in folder.iterdir() if file.suffix in PICKLES)
    if pickles:
        raise UserError(
            f"{folder / pickles[0]}: a pickle file can run code and is not read under this name; convert it to {SINGLE}"
        )
    raise UserError(f"{folder}: no {SINGLE} and no {INDEX}")


def _sharded(folder: Path, kind: _Weights) -> dict[str, StoredTensor]:
    """All tensors of all shards that the index names; the index and the shards have to say the same."""
    index = inside(folder, kind.index)
    placed = _placed(index, kind)
    found: dict[str, StoredTensor] = {}
    for file in sorted(set(placed.values())):
        for name, tensor in kind.read(inside(folder, file)).items():
            if name in found:
                raise UserError(
                    f"{folder / file}: {name} is also in {found[name].file.name}; each tensor is stored once"
                )
            found[name] = tensor
    for name, file in placed.items():
        if name not in found or found[name].file != folder / file:
            raise UserError(f"{folder / file}: {name} is missing, though {kind.index} says it is here")
    return found


def _placed(index: Path, kind: _Weights) -> dict[str, str]:
    """Tensor -> shard, as the index says."""
    placed = read_object(index, MOST_INDEX, "an index (a JSON object with weight_map)").get("weight_map")
    if not isinstance(placed, dict) or not placed or not all(isinstance(file, str) for file in placed.values()):
        raise UserError(f"{index}: is not an index (JSON with weight_map, which names the file of each tensor)")
    for name, file in placed.items():
        if file != Path(file).name or "\\" in file or not file.isprintable() or not file.endswith(kind.suffix):
            raise UserError(
                f"{index}: names {file!a} for {name!a}; only {kind.suffix} files in the same folder are read"
            )
    return placed


def _non_empty(tensors: dict[str, StoredTensor], file: Path) -> dict[str, StoredTensor]:
    if not tensors:
        raise UserError(f"{file}: holds no tensor")
    return tensors


def _tokenizer(folder: Path) -> TokenizerFiles | None:
    if not there(folder, TOKENIZER):
        return None
    file = inside(folder, TOKENIZER)
    try:
        content = text_of(file, MOST_TOKENIZER).decode()
    except UnicodeDecodeError:
        raise UserError(f"{file}: not a tokenizer.json (its text is not UTF-8)") from None
    settings = _settings(folder, TOKENIZER_SETTINGS)
    return TokenizerFiles(content, settings, _template(folder, settings))


def _template(folder: Path, settings: Mapping[str, Any]) -> str | None:
    """The chat template: a file of its own goes before the tokenizer's settings; of several the one named "default"."""
    for name in (TEMPLATE, f"{TEMPLATES}/default.jinja"):
        if there(folder, name):
            file = inside(folder, name)
            try:
                return text_of(file, MOST_SETTINGS).decode()
            except UnicodeDecodeError:
                raise UserError(f"{file}: not a chat template (its text is not UTF-8)") from None
    given = settings.get("chat_template")
    if isinstance(given, list):
        named = {row.get("name"): row.get("template") for row in given if isinstance(row, dict)}
        given = named.get("default")
    if given is not None and not isinstance(given, str):
        raise UserError(f"{folder / TOKENIZER_SETTINGS}: chat_template is a {type(given).__name__}, not text")
    return given
