"""One safetensors file: what its header says, held against the file's size before a byte of a tensor is believed.

Format: https://github.com/huggingface/safetensors#format. Eight bytes with the header's length, the header (JSON: name ->
type, shape, from and to), then the data, which the tensors fill without gap or overlap.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from burnish.errors import UserError
from burnish.load.checkpoint import StoredTensor
from burnish.load.json_object import parse_object
from burnish.load.regular_file import changed, version_of
from burnish.load.torch_needed import need_torch

if TYPE_CHECKING:
    from torch import Tensor

MOST_HEADER = 100_000_000  # bytes; the format's own bound
MOST_ELEMENTS = 2**62  # of a shape without its zeros, so that no product of sizes overflows
_LENGTH = 8  # bytes that hold the header's length
_METADATA = "__metadata__"
READABLE = ("float64", "float32", "float16", "bfloat16")
# Name in a file -> our name of the type, bits of an element.
TYPES = {
    "F64": ("float64", 64),
    "F32": ("float32", 32),
    "F16": ("float16", 16),
    "BF16": ("bfloat16", 16),
    "F8_E4M3": ("float8_e4m3fn", 8),
    "F8_E5M2": ("float8_e5m2", 8),
    "F8_E4M3FNUZ": ("float8_e4m3fnuz", 8),
    "F8_E5M2FNUZ": ("float8_e5m2fnuz", 8),
    "F8_E8M0": ("float8_e8m0fnu", 8),
    "F6_E2M3": ("float6_e2m3", 6),
    "F6_E3M2": ("float6_e3m2", 6),
    "F4": ("float4_e2m1", 4),
    "C64": ("complex64", 64),
    "I64": ("int64", 64),
    "I32": ("int32", 32),
    "I16": ("int16", 16),
    "I8": ("int8", 8),
    "U64": ("uint64", 64),
    "U32": ("uint32", 32),
    "U16": ("uint16", 16),
    "U8": ("uint8", 8),
    "BOOL": ("bool", 8),
}


class _Entry(NamedTuple):
    format: str
    shape: tuple[int, ...]
    start: int  # byte in the file
    end: int


def stored_tensors(file: Path) -> dict[str, StoredTensor]:
    """Name -> tensor of one file; only the header is read.

    Raises UserError naming file and tensor when the file is missing, cut short, longer than its header says, or its
    header is no header: a size that does not follow from type and shape, gaps, overlaps, a name that cannot be printed.
    """
    try:
        with file.open("rb") as stream:
            length = int.from_bytes(_exactly(stream.read(_LENGTH), _LENGTH, file), "little")
            if length > MOST_HEADER:
                raise _unsound(file, f"its header claims {length} bytes, at most {MOST_HEADER} are allowed")
            text = _exactly(stream.read(length), length, file)
            version = version_of(stream.fileno())
    except FileNotFoundError:
        raise UserError(f"{file}: no such file") from None
    except OSError as error:
        raise UserError(f"{file}: cannot be read ({error.strerror})") from None
    try:
        header = parse_object(text, str(file))
    except UserError as error:
        raise _unsound(file, "its header is " + str(error).removeprefix(f"{file}: ")) from None
    header.pop(_METADATA, None)
    data = _LENGTH + length
    entries = {name: _entry(file, name, value, data) for name, value in header.items()}
    _check_cover(file, entries, data, version[0])
    return {name: _stored(file, version, name, entry) for name, entry in entries.items()}


def _stored(file: Path, version: tuple[int, ...], name: str, entry: _Entry) -> StoredTensor:
    raw = partial(_read, file, version, name, entry)

    def read() -> Tensor:
        check_readable(file, name, entry.format)
        return raw()

    return StoredTensor(entry.shape, entry.format, entry.end - entry.start, file, read, raw)


def check_readable(file: Path, name: str, kind: str) -> None:
    """Raises UserError for a tensor whose elements are no plain floating point numbers."""
    if kind not in READABLE:
        raise UserError(f"{file}: {name} is {kind}; weights are read as {', '.join(READABLE)}")


def check_name(file: Path, name: str) -> None:
    """Raises UserError for a tensor's name that is empty or would garble a message or a terminal."""
    if not name or not name.isprintable():
        raise UserError(f"{file}: names a tensor {name!a}; names of tensors are printable text")


def _entry(file: Path, name: str, value: Any, data: int) -> _Entry:
    """A tensor's entry in the header, checked on its own; `data` is where the tensors begin."""
    check_name(file, name)
    if not isinstance(value, dict) or value.keys() != {"dtype", "shape", "data_offsets"}:
        raise _unsound(file, f"{name} has not exactly dtype, shape and data_offsets in its header")
    kind, shape, span = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(kind, str) or kind not in TYPES:
        raise UserError(f"{file}: {name} is of the type {kind!a}; known: {', '.join(TYPES)}")
    if not _counts(shape) or prod(max(size, 1) for size in shape) > MOST_ELEMENTS:
        raise _unsound(file, f"the shape of {name} is no list of sizes")
    if not _counts(span) or len(span) != 2:
        raise _unsound(file, f"data_offsets of {name} are no two positions")
    size, odd = divmod(prod(shape) * TYPES[kind][1], 8)
    if odd or span[1] - span[0] != size:
        raise _unsound(file, f"{name} {shape} of {kind} does not fill the {span[1] - span[0]} bytes it is given")
    return _Entry(TYPES[kind][0], tuple(shape), data + span[0], data + span[1])


def _counts(value: Any) -> bool:
    return isinstance(value, list) and all(type(number) is int and number >= 0 for number in value)


def _check_cover(file: Path, entries: Mapping[str, _Entry], data: int, size: int) -> None:
    """The tensors, in order of their bytes, fill the file: nothing is cut, hidden between them, or theirs twice."""
    at = data
    for name, entry in sorted(entries.items(), key=lambda item: item[1][2:]):
        if entry.start != at:
            raise _unsound(file, f"{name} begins at byte {entry.start}, where {at} is next")
        at = entry.end
    if at != size:
        raise _unsound(file, f"it has {size} bytes, its header describes {at}")


def _read(file: Path, version: tuple[int, ...], name: str, entry: _Entry) -> Tensor:
    """A copy of a tensor; not mapped, since a mapped file that is cut short ends the process."""
    need_torch(f"{file}: reading weights")
    import torch

    made = torch.empty(prod(entry.shape), dtype=getattr(torch, entry.format))
    into: Any = made.view(torch.uint8).numpy()
    try:
        with file.open("rb") as stream:
            if version_of(stream.fileno()) != version:
                raise changed(file)
            stream.seek(entry.start)
            got = stream.readinto(into) if made.numel() else 0
    except OSError as error:
        raise UserError(f"{file}: {name} cannot be read ({error.strerror or error})") from None
    if got != entry.end - entry.start:
        raise changed(file)
    return made.reshape(entry.shape)


def _exactly(read: bytes, wanted: int, file: Path) -> bytes:
    if len(read) != wanted:
        raise _unsound(file, "it ends within its header")
    return read


def _unsound(file: Path, why: str) -> UserError:
    return UserError(f"{file}: not a whole safetensors file: {why}")
