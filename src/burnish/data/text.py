"""Texts: files and folders of text read as a sequence of documents, with a fingerprint of their content.

A document is one file for .txt and .txt.gz, one line for .jsonl, one row for .parquet. Every fault of a file is one
UserError naming the file and, where there is one, the line or row.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files as package_files
from pathlib import Path
from typing import Any, BinaryIO, cast

from burnish.errors import MissingExtra, UserError, nearest

KINDS = (".txt", ".txt.gz", ".jsonl", ".parquet")
ASSET = "asset:"


@dataclass(frozen=True)
class Texts:
    """Readable files in a fixed order. `field` is the key (jsonl) or column (parquet) that holds the text."""

    files: tuple[Path, ...]
    field: str = "text"

    @classmethod
    def open(cls, sources: Sequence[str | Path], field: str = "text") -> Texts:
        """Resolve files, folders (recursive, sorted) and `asset:` names. Raises UserError when one is unusable."""
        if not sources:
            raise UserError(f"no text was given; name files or folders of {', '.join(KINDS)}")
        found = tuple(path for source in sources for path in _resolve(str(source)))
        seen: dict[Path, Path] = {}
        for path in found:
            if path.stat().st_size == 0:
                raise UserError(f"{path}: the file is empty; remove it, or name the files to read one by one")
            if (first := seen.setdefault(path.resolve(), path)) is not path:
                same = "" if first == path else f" (as {first})"
                raise UserError(f"{path}: is given twice{same}; name each file once, by itself or with its folder")
        return cls(found, field)

    def documents(self) -> Iterator[str]:
        """The texts, one at a time. Raises UserError at the first file, line or row that cannot be used."""
        for path in self.files:
            empty = True
            for text in _read(path, self.field):
                empty = False
                yield text
            if empty:
                raise UserError(f"{path}: holds no document")

    def count(self) -> int:
        """Number of documents, without decoding them."""
        return sum(_count(path) for path in self.files)

    @cached_property
    def fingerprint(self) -> str:
        """sha256 (hex) of the content of all files in order, their kinds and the field; not of names or dates."""
        total = hashlib.sha256()
        for path in self.files:
            with _opened(path) as stream:
                content = hashlib.file_digest(cast(Any, stream), "sha256").hexdigest()
            total.update(json.dumps([_kind(path), self.field, content]).encode())
        return total.hexdigest()


def _kind(path: Path) -> str | None:
    name = path.name.lower()
    return next((kind for kind in KINDS if name.endswith(kind)), None)


def _resolve(source: str) -> list[Path]:
    if source.startswith(ASSET):
        return _asset(source.removeprefix(ASSET))
    path = Path(source).expanduser()
    if path.is_dir():
        named = [p for p in path.rglob("*") if _kind(p) and not p.is_dir() and not p.name.startswith(".")]
        if not named:
            raise UserError(f"{path}: no usable file in this folder; usable: {', '.join(KINDS)}")
        return [_regular(p) for p in sorted(named)]
    if not path.exists():
        raise UserError(f"{path}: no such file or folder")
    if not _kind(path):
        raise UserError(f"{path}: not a kind of text file that is read here; usable: {', '.join(KINDS)}")
    return [_regular(path)]


def _regular(path: Path) -> Path:
    """Raises UserError for what is read more than once but could not be: a pipe, say."""
    if not path.is_file():
        raise UserError(
            f"{path}: not a regular file (a pipe, a device or a broken link); give a file with the text in it"
        )
    return path


def _asset(name: str) -> list[Path]:
    """Package data: a collection (`austen`) or one file of it (`austen/emma`)."""
    root = Path(str(package_files("burnish") / "assets"))
    kept = sorted(path for path in root.glob("*/*") if _kind(path) in (".txt.gz", ".jsonl"))
    known = {f"{path.parent.name}/{path.name.removesuffix(str(_kind(path)))}": path for path in kept}
    chosen = [path for key, path in known.items() if name in (key, path.parent.name)]
    if not chosen:
        names = {*known, *(path.parent.name for path in known.values())}
        raise UserError(f"{ASSET}{name}: no such asset; {nearest(name, names)}")
    return chosen


def _opened(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None


def _read(path: Path, field: str) -> Iterator[str]:
    kind = _kind(path)
    if kind == ".parquet":
        return _parquet(path, field)
    return _jsonl(path, field) if kind == ".jsonl" else _plain(path)


def _plain(path: Path) -> Iterator[str]:
    with _opened(path) as stream:
        raw = stream.read()
    if _kind(path) == ".txt.gz":
        try:
            raw = gzip.decompress(raw)
        except (OSError, EOFError, zlib.error) as error:
            raise UserError(f"{path}: not a whole gzip file ({error})") from None
    text = decode(raw, str(path))
    if not text.strip():
        raise UserError(f"{path}: holds no text, only white space")
    yield text


def decode(raw: bytes, where: str) -> str:
    """UTF-8 without its optional byte order mark. Raises UserError when it is something else."""
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{where}: not UTF-8 text (byte 0x{raw[error.start]:02x} at offset {error.start})") from None
    if "\0" in text:
        raise UserError(f"{where}: holds a NUL byte at offset {raw.index(0)}; this looks binary, not text")
    return text


def _jsonl(path: Path, field: str) -> Iterator[str]:
    for where, record in json_lines(path):
        if not isinstance(record, dict):
            raise UserError(f"{where}: expected a JSON object with key {field!r}, found {json_name(record)}")
        if field not in record:
            raise UserError(f"{where}: no key {field!r} (data.text_field); {nearest(field, record)}")
        if not isinstance(record[field], str):
            raise UserError(f"{where}: {field!r} must be a string, found {json_name(record[field])}")
        check_unicode(record[field], where)
        yield record[field]


def json_lines(path: Path) -> Iterator[tuple[str, Any]]:
    """Each line that is not blank: file and line for messages, and what its JSON holds. Raises UserError naming both."""
    with _opened(path) as stream:
        for number, raw in enumerate(stream, start=1):
            where = f"{path}, line {number}"
            line = decode(raw, where)
            if not line.strip():
                continue
            yield where, _parsed(line, where)


def _parsed(line: str, where: str) -> Any:
    try:
        return json.loads(line)
    except json.JSONDecodeError as error:
        raise UserError(f"{where}: not valid JSON ({error.msg} at column {error.colno})") from None
    except (ValueError, RecursionError) as error:  # a number or a nesting beyond what Python reads
        raise UserError(f"{where}: not usable JSON ({str(error).splitlines()[0]})") from None


def check_unicode(text: str, where: str) -> None:
    """JSON can escape half a surrogate pair, which no text holds; raises UserError."""
    try:
        if not text.isascii():
            text.encode()
    except UnicodeEncodeError as error:
        raise UserError(f"{where}: holds half a surrogate pair, {text[error.start]!r}; it is not text") from None


def json_name(value: object) -> str:
    """What JSON calls a value, with its article."""
    if value is None:
        return "null"
    names = {str: "a string", bool: "a boolean", int: "a number", float: "a number", list: "an array"}
    return names.get(type(value), "an object")


def _parquet_file(path: Path) -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise MissingExtra("reading parquet files", "train", "pyarrow") from None
    try:
        return pyarrow.parquet.ParquetFile(path)
    except (pyarrow.ArrowException, OSError) as error:
        raise UserError(f"{path}: not a readable parquet file ({str(error).splitlines()[0]})") from None


def _parquet(path: Path, field: str) -> Iterator[str]:
    with _parquet_file(path) as file:
        columns = file.schema_arrow.names
        if field not in columns:
            raise UserError(f"{path}: no column {field!r} (data.text_field); {nearest(field, columns)}")
        held = str(file.schema_arrow.field(field).type)
        if held not in ("string", "large_string"):
            raise UserError(f"{path}: column {field!r} must hold strings, found {held}")
        values = (text for batch in file.iter_batches(columns=[field]) for text in batch.column(0).to_pylist())
        for number, text in enumerate(values, start=1):
            if text is None:
                raise UserError(f"{path}, row {number}: {field!r} must be a string, found null")
            yield text


def _count(path: Path) -> int:
    kind = _kind(path)
    if kind == ".parquet":
        with _parquet_file(path) as file:
            return int(file.metadata.num_rows)
    if kind != ".jsonl":
        return 1
    with _opened(path) as stream:
        return sum(1 for line in stream if line.strip())
