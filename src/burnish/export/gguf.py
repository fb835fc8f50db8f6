"""GGUF files out: a checkpoint as llama.cpp and the tools on top of it load it, in float or in quantized blocks."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from burnish.errors import MissingExtra, UserError
from burnish.gguf_files.layout import Entry
from burnish.gguf_files.written import Contents, contents
from burnish.load.checkpoint import Checkpoint, StoredTensor
from burnish.load.gguf import turned
from burnish.records import replaced
from burnish.tables.gguf import STORAGES

_NOT_WEIGHTS = (".rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias")  # derived: older checkpoints store them
_HALF = float(np.finfo(np.float16).max)  # also bounds the scale of a quantized block, which is in half precision


@dataclass(frozen=True)
class GgufFile:
    """A file as written. `storages`: what tensors are stored as, with how many; `wider`: names of those that fit no block
    of the format and stand in float16; `notes`: what llama.cpp will do otherwise than this model."""

    path: Path
    bytes: int
    storages: Mapping[str, int]
    wider: tuple[str, ...]
    notes: tuple[str, ...]


def save_gguf(checkpoint: Checkpoint, path: str | Path, form: str) -> GgufFile:
    """Write `checkpoint` to `path` in the format F32, F16, BF16, Q8_0, Q4_0 or Q4_1, whole or not at all.

    One tensor at a time is read, ordered as llama.cpp has it and quantized. Raises UserError for a format or family
    that is not written, a tensor that is missing, unexpected, of another shape or out of range, and a place that cannot
    be written.
    """
    planned = contents(checkpoint.config, form, checkpoint.tokenizer, checkpoint.where)
    sources = _sources(checkpoint, planned)
    target = replaced(Path(path))
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _write(temporary, planned, checkpoint, sources)
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror or error}); choose a writable folder") from None
    finally:
        with contextlib.suppress(OSError):  # gone once moved into place
            temporary.unlink()
    counts = dict(Counter(planned.storages.values()))
    return GgufFile(Path(path), target.stat().st_size, counts, planned.wider, planned.notes)


def _sources(checkpoint: Checkpoint, planned: Contents) -> dict[str, StoredTensor]:
    """The checkpoint's tensors by the names that are wanted; each must be there, and nothing that is left over."""
    found: dict[str, StoredTensor] = {}
    used = set()
    for entry in planned.entries:
        for name in entry.names:
            # the published files of GPT-2 leave the first part of the name out
            there = next((n for n in (name, name.removeprefix("transformer.")) if n in checkpoint.tensors), None)
            if there is None:
                raise UserError(f"{checkpoint.where}: {name} is missing; the configuration describes it")
            tensor = checkpoint.tensors[there]
            if tuple(tensor.shape) != entry.shape:
                raise UserError(
                    f"{tensor.file}: {there} has the shape {tuple(tensor.shape)}, config.json says {entry.shape}"
                )
            found[name] = tensor
            used.add(there)
    tied = {"lm_head.weight"} if "output.weight" not in planned.storages else set()
    left = [n for n in checkpoint.tensors.keys() - used - tied if not n.endswith(_NOT_WEIGHTS)]
    if left:
        raise UserError(f"{checkpoint.where}: unexpected {min(left)}; config.json describes no such weight")
    return found


def _write(file: Path, planned: Contents, checkpoint: Checkpoint, sources: Mapping[str, StoredTensor]) -> None:
    try:
        from gguf import GGMLQuantizationType, GGUFValueType, GGUFWriter
    except ImportError:
        raise MissingExtra("writing GGUF files", "models", "gguf") from None
    types = {"u32": "UINT32", "i32": "INT32", "f32": "FLOAT32", "bool": "BOOL", "string": "STRING"}
    writer = GGUFWriter(None, planned.family.gguf)  # which writes general.architecture by itself
    try:
        for key, kind, value in planned.fields[1:]:
            one = GGUFValueType[types[kind.strip("[]")]]
            if kind.startswith("["):
                writer.add_key_value(key, value, GGUFValueType.ARRAY, one)
            else:
                writer.add_key_value(key, value, one)
        for entry in planned.entries:
            storage = planned.storages[entry.name]
            size, number = entry.bytes(storage), GGMLQuantizationType[storage]
            writer.add_tensor_info(entry.name, _byte_shape(entry.stored, storage), np.dtype(np.uint8), size, number)
        writer.write_header_to_file(file)
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for entry in planned.entries:
            writer.write_tensor_data(_data(entry, planned, checkpoint, sources))
    finally:
        writer.close()


def _byte_shape(shape: tuple[int, ...], storage: str) -> tuple[int, ...]:
    kind = STORAGES[storage]
    return (*shape[:-1], shape[-1] // kind.block * kind.bytes)


def _data(
    entry: Entry, planned: Contents, checkpoint: Checkpoint, sources: Mapping[str, StoredTensor]
) -> np.ndarray[Any, Any]:
    """The bytes of a tensor of the file, experts one after another."""
    storage = planned.storages[entry.name]
    if not entry.names and planned.factors is not None:
        return planned.factors
    heads = {"q": "num_attention_heads", "k": "num_key_value_heads"}
    made = []
    for name in entry.names:
        tensor = sources[name].read().float()
        if entry.order == "transposed":
            tensor = tensor.T
        elif entry.order:
            count = checkpoint.config.get(heads[entry.order]) or checkpoint.config["num_attention_heads"]
            tensor = turned(tensor, count)
        made.append(quantized(tensor.contiguous().numpy(), storage, f"{sources[name].file}: {name}"))
    return np.stack(made) if entry.stacked else made[0]


def quantized(values: np.ndarray[Any, Any], storage: str, what: str) -> np.ndarray[Any, Any]:
    """Float32 values as the format stores them, by the gguf package. Raises UserError for what half precision cannot hold."""
    from gguf import GGMLQuantizationType
    from gguf.quants import quantize

    if storage in ("F32", "BF16"):
        return quantize(values, GGMLQuantizationType[storage])
    largest = np.abs(values).max()
    if not largest <= _HALF:
        raise UserError(f"{what} holds {largest}, which {storage} cannot hold (up to {_HALF:.0f}); F32 and BF16 can")
    with np.errstate(all="ignore"):  # scales of blocks near zero
        return quantize(values, GGMLQuantizationType[storage])
