"""Token cache: text is tokenized once into one memory-mapped file named by the hash of what went into it.

File: a header block of fixed size (JSON, padded with spaces), the framed tokens (uint16 where the vocabulary allows,
else uint32), for a chat one byte a token that says whether it is learned, then two int64 arrays with one entry a document:
tokens, UTF-8 bytes. The header names the lengths and the sha256 of all that follows, so a truncated or damaged file is found
and built again. A file is written under a name of its own and moved into place; of processes that need the same one, as the ranks
of a run do, one makes it while the others wait.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, BinaryIO, Protocol

import numpy as np

from burnish.data.packing import Corpus
from burnish.data.tokenizer import Framed
from burnish.errors import UserError

try:
    import fcntl
except ImportError:  # not on Windows: processes at once do the same work twice there
    fcntl = None  # type: ignore[assignment]

FORMAT = 1
_UNFINISHED = re.compile(r"\.[0-9a-f]{16}\.(?P<writer>\d+)\.[0-9a-f]{8}")
_OLD_SECONDS = 3600  # a writer that lives writes more often
_HEADER_BYTES = 4096  # a page, so that the tokens start aligned
Progress = Callable[[int, int], None]


class Documents(Protocol):
    """Texts or conversations, and the name of their content."""

    @property
    def fingerprint(self) -> str: ...
    def count(self) -> int: ...
    def documents(self) -> Iterable[Any]: ...


class Encoder(Protocol):
    """What makes tokens of such documents."""

    eos: int

    @property
    def fingerprint(self) -> str: ...
    @property
    def vocab(self) -> int: ...
    def framed(self, documents: Iterable[Any]) -> Iterator[Framed]: ...


def cache_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Where tokens are kept: $BURNISH_CACHE, else $XDG_CACHE_HOME/burnish, else ~/.cache/burnish."""
    if own := environment.get("BURNISH_CACHE"):
        return Path(own).expanduser()
    if shared := environment.get("XDG_CACHE_HOME"):
        return Path(shared).expanduser() / "burnish"
    return Path.home() / ".cache" / "burnish"


def cache_key(texts: Documents, tokenizer: Encoder) -> str:
    """Name of the entry: content of the text, the tokenizer, and the version of this format."""
    return hashlib.sha256(f"{FORMAT}\n{texts.fingerprint}\n{tokenizer.fingerprint}".encode()).hexdigest()


def tokenized(
    texts: Documents, tokenizer: Encoder, folder: Path | None = None, progress: Progress | None = None
) -> Corpus:
    """The framed tokens of `texts`, from the cache when it holds them whole, else tokenized now and kept.

    `progress(documents done, total)` is called while tokenizing. Raises UserError for bad text and for a folder that
    cannot be written.
    """
    folder = cache_folder() if folder is None else folder
    path = folder / f"{cache_key(texts, tokenizer)}.tokens"
    _clear(folder)
    corpus = _opened(path, tokenizer.eos)
    if corpus is None:
        with _turn(path):
            if _opened(path, tokenizer.eos) is None:  # nobody has made it while this process waited for its turn
                _build(path, texts, tokenizer, progress)
        corpus = _opened(path, tokenizer.eos)
    if corpus is None:
        raise UserError(f"{path}: was written but does not read back whole; the disk of this folder may be faulty")
    return corpus


def _opened(path: Path, eos: int) -> Corpus | None:
    """The entry at `path`, or None when there is none or it is not whole."""
    try:
        with path.open("rb") as stream:
            header: dict[str, Any] = json.loads(stream.read(_HEADER_BYTES))
            whole = hashlib.file_digest(stream, "sha256").hexdigest() == header["sha256"]
        dtype, tokens, documents = np.dtype(header["dtype"]), int(header["tokens"]), int(header["documents"])
        masked = bool(header.get("learned", False))
        tail_at = _HEADER_BYTES + tokens * (dtype.itemsize + masked)
        expected = tail_at + 2 * documents * np.dtype(np.int64).itemsize
        whole = whole and path.stat().st_size == expected and tokens > 0
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if not whole:
        return None
    mapped = np.memmap(path, dtype=dtype, mode="r", offset=_HEADER_BYTES, shape=(tokens,))
    learned = np.memmap(path, dtype=np.bool_, mode="r", offset=tail_at - tokens, shape=(tokens,)) if masked else None
    tail = np.fromfile(path, dtype=np.int64, offset=tail_at, count=2 * documents)
    lengths, sizes = tail[:documents], tail[documents:]
    return Corpus(mapped, np.cumsum(lengths) - lengths, lengths, sizes, eos, learned)


def _clear(folder: Path) -> None:
    """Remove what killed processes were writing: unfinished files that are old and whose writer is gone."""
    for path in folder.glob(".*"):
        with contextlib.suppress(OSError):  # another process may clear the same
            named = _UNFINISHED.fullmatch(path.name)
            if named and time.time() - path.stat().st_mtime > _OLD_SECONDS and not _alive(int(named["writer"])):
                path.unlink()


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)  # signal 0 is not sent, only looked up
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True  # somebody else's, or not to be known
    return True


@contextlib.contextmanager
def _turn(path: Path) -> Iterator[None]:
    """One process of this machine at a time makes the entry at `path`; the others wait, for as long as it takes.

    The system lets go of the claim when the process ends, however it ends. Where no claim can be made, nobody waits.
    """
    claim, lock = None, path.with_name(f".{path.stem}.turn")
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        claim = _claimed(lock)
    try:
        yield
    finally:
        if claim is not None:
            lock.unlink(missing_ok=True)
            claim.close()


def _claimed(lock: Path) -> IO[str] | None:
    """The open file at `lock`, claimed; one that was removed by whoever had it before is no claim."""
    while fcntl is not None:
        claim = lock.open("a")
        fcntl.flock(claim, fcntl.LOCK_EX)
        with contextlib.suppress(FileNotFoundError):
            if os.fstat(claim.fileno()).st_ino == lock.stat().st_ino:
                return claim
        claim.close()
    return None


def _build(path: Path, texts: Documents, tokenizer: Encoder, progress: Progress | None) -> None:
    temporary = path.with_name(f".{path.stem[:16]}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("xb") as stream:
            _write(stream, texts, tokenizer, progress)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    except OSError as error:
        reason = error.strerror or str(error)
        raise UserError(
            f"{path.parent}: the token cache cannot be written ({reason}); set BURNISH_CACHE to a writable folder"
        ) from None
    finally:
        with contextlib.suppress(OSError):  # gone once moved into place; or its folder never was
            temporary.unlink()


def _write(stream: BinaryIO, texts: Documents, tokenizer: Encoder, progress: Progress | None) -> None:
    dtype = np.dtype("<u2" if tokenizer.vocab <= 1 << 16 else "<u4")
    lengths, sizes = [], []
    masks: list[bytes] = []
    digest = hashlib.sha256()
    total = texts.count() if progress else 0
    stream.write(b" " * _HEADER_BYTES)
    for ids, size, learned in tokenizer.framed(texts.documents()):
        framed = ids.astype(dtype).tobytes()
        digest.update(framed)
        stream.write(framed)
        lengths.append(len(ids))
        sizes.append(size)
        if learned is not None:
            masks.append(learned.tobytes())
        if progress:
            progress(len(lengths), total)
    tail = b"".join(masks) + np.array([lengths, sizes], dtype="<i8").tobytes()
    digest.update(tail)
    stream.write(tail)
    header = {"format": FORMAT, "dtype": dtype.str, "tokens": sum(lengths), "documents": len(lengths)}
    header |= {"text_bytes": sum(sizes), "eos": tokenizer.eos, "learned": bool(masks)}
    header["sha256"] = digest.hexdigest()
    stream.seek(0)
    stream.write(json.dumps(header).encode().ljust(_HEADER_BYTES))
