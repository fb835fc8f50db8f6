"""The header of a GGUF file, read with every length held against the bytes that are there.

A count in a header costs memory only once the file is seen to be long enough for it. Of the metadata the values are kept
as Python's own; of tensors only where they stand.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from burnish.errors import UserError
from burnish.tables.gguf import (
    ALIGNMENT,
    LONGEST_KEY,
    LONGEST_NAME,
    MAGIC,
    MOST_DIMENSIONS,
    READABLE,
    STORAGES,
    VERSIONS,
)

_NUMBERS = {0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 10: "<u8", 11: "<i8", 12: "<f8"}
_BOOL, _STRING, _ARRAY = 7, 8, 9
_NAMES = {storage.number: name for name, storage in STORAGES.items()}


@dataclass(frozen=True)
class Placed:
    """A tensor in the file: `shape` with the rows' length last, `offset` from the start of the file, all in bytes."""

    name: str
    shape: tuple[int, ...]
    storage: str
    offset: int
    bytes: int


@dataclass(frozen=True)
class Header:
    """What a file says before its weights."""

    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, Placed]

    def refuse(self, what: str) -> UserError:
        """The error that says `what` of this file."""
        return UserError(f"{self.path}: {what}")


class _Reader:
    """The file from the front; asking for more than is left is the user's error."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self.path, self._file = path, file
        self.size = os.fstat(file.fileno()).st_size
        self.at = 0
        self.what = "the header"

    def refuse(self, what: str) -> UserError:
        return UserError(f"{self.path}: {what}")

    def ended(self, needed: int) -> UserError:
        return self.refuse(
            f"not a whole GGUF file: {self.what} needs {needed} bytes at {self.at}, but the file ends at {self.size}"
        )

    def bytes(self, count: int) -> bytes:
        if count > self.size - self.at:
            raise self.ended(count)
        found = self._file.read(count)
        if len(found) != count:
            raise self.ended(count)
        self.at += count
        return found

    def u32(self) -> int:
        return int.from_bytes(self.bytes(4), "little")

    def u64(self) -> int:
        return int.from_bytes(self.bytes(8), "little")

    def count(self, least: int) -> int:
        """How many things follow, each of at least so many bytes."""
        number = self.u64()
        if number * least > self.size - self.at:
            raise self.refuse(
                f"not a whole GGUF file: {self.what} has {number} entries, more than the file has room for"
            )
        return number

    def text(self) -> str:
        raw = self.bytes(self.u64())
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            raise self.refuse(f"{self.what} is not UTF-8") from None

    def name(self, longest: int) -> str:
        """A key, or the name of a tensor: some printable text."""
        length = self.u64()
        if not 0 < length <= longest:
            raise self.refuse(f"{self.what} has a name of {length} bytes; 1 to {longest} are allowed")
        raw = self.bytes(length)
        try:
            name = raw.decode("utf-8")
        except UnicodeDecodeError:
            name = ""
        if not name.isprintable() or not name:
            raise self.refuse(f"{self.what} has a name that is no text: {raw[:40]!r}")
        return name

    def value(self, kind: int) -> Any:
        if kind in _NUMBERS:
            dtype = np.dtype(_NUMBERS[kind])
            return np.frombuffer(self.bytes(dtype.itemsize), dtype)[0].item()
        if kind == _STRING:
            return self.text()
        if kind == _BOOL:
            return self.bytes(1) != b"\0"
        if kind == _ARRAY:
            return self.array()
        raise self.refuse(f"{self.what} is of an unknown type {kind}")

    def array(self) -> list[Any]:
        kind = self.u32()
        if kind == _STRING:
            return [self.text() for _ in range(self.count(8))]
        if kind == _BOOL:
            return [byte != 0 for byte in self.bytes(self.count(1))]
        if kind not in _NUMBERS:
            raise self.refuse(
                f"{self.what} is an array of type {kind}; arrays of numbers, booleans and strings are read"
            )
        dtype = np.dtype(_NUMBERS[kind])
        return np.frombuffer(self.bytes(self.count(dtype.itemsize) * dtype.itemsize), dtype).tolist()


def read_header(path: Path) -> Header:
    """Metadata and the places of the tensors. Raises UserError naming the file and the key or tensor that is wrong."""
    try:
        with path.open("rb") as file:
            return _header(_Reader(path, file))
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from None


def _header(reader: _Reader) -> Header:
    if reader.size < len(MAGIC) or reader.bytes(len(MAGIC)) != MAGIC:
        raise reader.refuse(f"not a GGUF file: it does not begin with {MAGIC.decode()}")
    version = reader.u32()
    if version not in VERSIONS:
        if version & 0xFFFF == 0 and version:
            raise reader.refuse("a big-endian GGUF file; only little-endian ones are read")
        raise reader.refuse(f"GGUF version {version}; {' and '.join(map(str, VERSIONS))} are read")
    reader.what = "the list of tensors"
    tensors = reader.count(struct.calcsize("<QBIIQ"))
    reader.what = "the metadata"
    metadata: dict[str, Any] = {}
    for _ in range(reader.count(struct.calcsize("<QBIB"))):
        reader.what = "the metadata"
        key = reader.name(LONGEST_KEY)
        if key in metadata:
            raise reader.refuse(f"the key {key} stands there twice")
        reader.what = key
        metadata[key] = reader.value(reader.u32())
    alignment = metadata.get("general.alignment", ALIGNMENT)
    if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
        raise reader.refuse(f"general.alignment is {_short(alignment)}; a power of two is needed")
    placed: dict[str, Placed] = {}
    for _ in range(tensors):
        tensor = _placed(reader, alignment)
        if tensor.name in placed:
            raise reader.refuse(f"the tensor {tensor.name} stands there twice")
        placed[tensor.name] = tensor
    start = -(-reader.at // alignment) * alignment
    moved = {name: _within(reader, tensor, start) for name, tensor in placed.items()}
    _apart(reader, moved)
    return Header(reader.path, metadata, moved)


def _placed(reader: _Reader, alignment: int) -> Placed:
    reader.what = "the list of tensors"
    name = reader.name(LONGEST_NAME)
    reader.what = name
    dimensions = reader.u32()
    if not 1 <= dimensions <= MOST_DIMENSIONS:
        raise reader.refuse(f"{name} has {dimensions} dimensions; 1 to {MOST_DIMENSIONS} are read")
    shape = tuple(reader.u64() for _ in range(dimensions))[::-1]
    number = reader.u32()
    if number not in _NAMES:
        raise reader.refuse(f"{name} is stored as type {number}, which is unknown; {', '.join(READABLE)} are read")
    storage = STORAGES[_NAMES[number]]
    if not all(shape):
        raise reader.refuse(f"{name} has the shape {shape}, which holds nothing")
    if shape[-1] % storage.block:
        raise reader.refuse(
            f"{name} has rows of {shape[-1]}, no multiple of {_NAMES[number]}'s block of {storage.block}"
        )
    elements = 1
    for length in shape:
        elements *= length
    offset = reader.u64()
    if offset % alignment:
        raise reader.refuse(f"{name} begins at {offset}, which is no multiple of the alignment {alignment}")
    return Placed(name, shape, _NAMES[number], offset, elements // storage.block * storage.bytes)


def _within(reader: _Reader, tensor: Placed, start: int) -> Placed:
    first = start + tensor.offset
    if first + tensor.bytes > reader.size:
        raise reader.refuse(
            f"not a whole GGUF file: {tensor.name} ends at byte {first + tensor.bytes}, the file at {reader.size}"
        )
    return Placed(tensor.name, tensor.shape, tensor.storage, first, tensor.bytes)


def _apart(reader: _Reader, tensors: Mapping[str, Placed]) -> None:
    """Refuse two tensors in one place: such a file was not written by a program that writes models."""
    end, before = 0, ""
    for tensor in sorted(tensors.values(), key=lambda t: t.offset):
        if tensor.offset < end:
            raise reader.refuse(f"{tensor.name} lies where {before} does")
        end, before = tensor.offset + tensor.bytes, tensor.name


def _short(value: Any) -> str:
    said = repr(value)
    return said if len(said) <= 40 else said[:37] + "..."
