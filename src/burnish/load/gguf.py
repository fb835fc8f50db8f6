"""GGUF files in: the file that llama.cpp runs, as a checkpoint in Hugging Face's spelling, dequantized tensor by tensor."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from burnish.errors import MissingExtra, UserError
from burnish.gguf_files.header import Header, Placed, read_header
from burnish.gguf_files.layout import FACTORS, Entry, entries, sizes
from burnish.gguf_files.settings import family_of_file, read_config, token_id
from burnish.load.checkpoint import Checkpoint, StoredTensor
from burnish.load.gguf_tokenizer import read_tokenizer
from burnish.tables.gguf import FLOATS, READABLE, STORAGES
from burnish.tables.gguf_families import Architecture

_ROWS = 2048  # dequantized at a time: what is held beside the result stays small


def open_gguf(path: str | Path) -> Checkpoint:
    """The checkpoint that a GGUF file holds; weights are read and dequantized one by one, as they are asked for.

    llama.cpp's order of the rows of queries and keys is undone, experts stand one by one, GPT-2's layers as Conv1D has
    them. Raises UserError, one line with the file and the key or tensor, for what is no whole GGUF file of a family
    and of storage types that are read.
    """
    path = Path(path)
    header = read_header(path)
    family = family_of_file(header)
    header = _without_copy(header, family)
    config = read_config(header, family)
    layers = sizes(family, config, str(path))["layers"]
    if layers > len(header.tensors):
        raise header.refuse(f"{family.gguf}.block_count is {layers}, but there are {len(header.tensors)} tensors")
    _check_experts(header, config)
    made = entries(family, config, str(path), FACTORS in header.tensors and "llama3" in family.ropes)
    _check(header, made)
    heads = {"q": config.get("num_attention_heads", 0), "k": config.get("num_key_value_heads", 0)}
    tensors = {
        name: _stored(header, entry, part, heads.get(entry.order, 0))
        for entry in made
        for part, name in enumerate(entry.names)
    }
    generation: dict[str, Any] = {key: config[key] for key in ("bos_token_id", "eos_token_id") if key in config}
    turn = token_id(header, "eot", config["vocab_size"])
    if turn is not None and turn != generation.setdefault("eos_token_id", turn):
        generation["eos_token_id"] = [generation["eos_token_id"], turn]
    tokenizer = read_tokenizer(header, config["vocab_size"], config.get("max_position_embeddings"))
    return Checkpoint(str(path), "GGUF", config, tensors, tokenizer, generation)


def _without_copy(header: Header, family: Architecture) -> Header:
    """The header without an output matrix that repeats the embedding, where the family ties the two.

    llama.cpp's converter of GPT-2 used to write it twice.
    """
    copy, embedding = (header.tensors.get(name) for name in (family.flags["untied"], "token_embd.weight"))
    if not family.defaults["tie_word_embeddings"] or copy is None or embedding is None:
        return header
    if (copy.storage, copy.shape) != (embedding.storage, embedding.shape):
        return header
    one, other = (np.memmap(header.path, mode="r", offset=p.offset, shape=(p.bytes,)) for p in (copy, embedding))
    if not np.array_equal(one, other):
        return header
    return replace(header, tensors={n: p for n, p in header.tensors.items() if n != copy.name})


def _check_experts(header: Header, config: dict[str, Any]) -> None:
    """Refuse a count of experts that the tensors do not have, before anything is listed once an expert."""
    for key in ("num_local_experts", "num_experts"):
        router = header.tensors.get("blk.0.ffn_gate_inp.weight")
        if key in config and (router is None or router.shape[0] != config[key]):
            said = "is missing" if router is None else f"has {router.shape[0]} rows"
            raise header.refuse(f"blk.0.ffn_gate_inp.weight {said}, but expert_count is {config[key]}")


def _check(header: Header, made: list[Entry]) -> None:
    """Refuse tensors that are missing, unexpected, of another shape than the settings say, or in no readable storage."""
    for entry in made:
        place = header.tensors.get(entry.name)
        if place is None:
            raise header.refuse(f"{entry.name} is missing")
        if place.shape != entry.stored:
            raise header.refuse(f"{entry.name} has the shape {place.shape}, the metadata say {entry.stored}")
        if place.storage not in READABLE:
            raise header.refuse(f"{entry.name} is stored as {place.storage}; {', '.join(READABLE)} are read")
    if more := sorted(header.tensors.keys() - {entry.name for entry in made}):
        raise header.refuse(f"unexpected tensor {more[0]}; the metadata describe no such weight")


def _stored(header: Header, entry: Entry, part: int, heads: int) -> StoredTensor:
    place = header.tensors[entry.name]
    parts = len(entry.names)
    size = place.bytes // parts
    shape = place.shape[1:] if entry.stacked else place.shape
    piece = Placed(place.name, shape, place.storage, place.offset + part * size, size)
    form = FLOATS.get(place.storage, place.storage)
    return StoredTensor(entry.shape, form, size, header.path, partial(_read, header.path, piece, entry.order, heads))


def _read(path: Path, piece: Placed, order: str, heads: int) -> Tensor:
    try:
        with path.open("rb") as file:
            file.seek(piece.offset)
            raw = bytearray(file.read(piece.bytes))
    except OSError as error:
        raise UserError(f"{path}: {piece.name} cannot be read ({error.strerror or error})") from None
    if len(raw) != piece.bytes:
        raise UserError(f"{path}: not a whole GGUF file: {piece.name} was cut off since it was opened")
    if piece.storage in FLOATS:
        found = torch.frombuffer(raw, dtype=getattr(torch, FLOATS[piece.storage])).view(piece.shape)
    else:
        found = torch.from_numpy(dequantized(np.frombuffer(raw, np.uint8), piece.storage, piece.shape))
    if order == "transposed":
        return found.T.contiguous() if found.ndim > 1 else found
    return unturned(found, heads) if order else found


def dequantized(raw: np.ndarray, storage: str, shape: tuple[int, ...]) -> np.ndarray:
    """Elements of `shape` in float32 from the bytes of a quantized tensor. Raises MissingExtra without gguf."""
    try:
        from gguf import GGMLQuantizationType
        from gguf.quants import dequantize
    except ImportError:
        raise MissingExtra("reading quantized GGUF files", "models", "gguf") from None
    kind = STORAGES[storage]
    rows = raw.reshape(-1, shape[-1] // kind.block * kind.bytes)
    found = np.empty((len(rows), shape[-1]), np.float32)
    with np.errstate(all="ignore"):  # scales that are not finite give weights that are not
        for start in range(0, len(rows), _ROWS):
            found[start : start + _ROWS] = dequantize(rows[start : start + _ROWS], GGMLQuantizationType[storage])
    return found.reshape(shape)


def turned(rows: Tensor, heads: int) -> Tensor:
    """Rows of queries or keys as llama.cpp has them: the two halves of a head interleaved (its rotary embedding of
    Llama models turns neighbours, Hugging Face's turns halves). [heads * D, ...] in and out."""
    return rows.unflatten(0, (heads, 2, -1)).transpose(1, 2).reshape(rows.shape)


def unturned(rows: Tensor, heads: int) -> Tensor:
    """The inverse of `turned`."""
    return rows.unflatten(0, (heads, -1, 2)).transpose(1, 2).reshape(rows.shape)
