"""Write a whole folder or nothing: files are made in a folder beside it, which is then renamed into place."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from burnish.errors import UserError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


@contextlib.contextmanager
def replacing_folder(folder: Path, ours: Callable[[str], bool]) -> Iterator[Path]:
    """Give a fresh folder to write into; on a clean exit it becomes `folder`, otherwise it is removed.

    An earlier `folder` is replaced if it holds only files whose names `ours` accepts, as "name", and in a folder in it that is
    accepted as "folder/" as "folder/name". It is moved aside for the moment
    of the swap, so a kill leaves one version whole, never a mixture. Raises UserError when the place cannot be written,
    holds something that is not ours, or another process is writing it.
    """
    folder = Path(os.path.abspath(folder))
    fresh, aside = (folder.with_name(f".{folder.name}.{what}") for what in ("writing", "replaced"))
    refuse_foreign(folder, ours)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        if fresh.exists():  # a killed run left it, or another is at work
            with _claimed(fresh, folder):
                shutil.rmtree(fresh)
        if aside.exists() and not folder.exists():
            os.replace(aside, folder)  # a run was killed in the middle of its swap
        if aside.exists():
            shutil.rmtree(aside)
        fresh.mkdir()
        with _claimed(fresh, folder):
            try:
                yield fresh
                _flush(fresh)
                if folder.exists():
                    os.replace(folder, aside)
                os.replace(fresh, folder)
            except BaseException:
                if aside.exists() and not folder.exists():
                    os.replace(aside, folder)
                shutil.rmtree(fresh, ignore_errors=True)
                raise
            shutil.rmtree(aside, ignore_errors=True)
    except OSError as error:
        raise UserError(f"{folder}: cannot be written ({error.strerror or error}); choose another folder") from error


@contextlib.contextmanager
def _claimed(fresh: Path, folder: Path) -> Iterator[None]:
    """Keep other processes out; the system lets go of the claim when this one ends, however it ends."""
    if fcntl is None:
        yield
        return
    handle = os.open(fresh, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"{folder}: another process is writing it; wait for it, or choose another folder") from None
        except OSError:
            pass  # a file system without claims
        yield
    finally:
        os.close(handle)


def refuse_foreign(folder: Path, ours: Callable[[str], bool]) -> None:
    """Raises UserError for a place that is a file, or a folder with something in it that is not ours."""
    if folder.is_dir():
        foreign = sorted(_foreign(folder, "", ours))
        if foreign:
            raise UserError(f"{folder}: holds {foreign[0]!r}, which is no part of a model; choose another folder")
    elif folder.exists():
        raise UserError(f"{folder}: is a file; a model is written into a folder")


def _foreign(folder: Path, within: str, ours: Callable[[str], bool]) -> Iterator[str]:
    """What stands there under a name that is not accepted; only folders that are accepted are looked into."""
    for path in folder.iterdir():
        name = f"{within}{path.name}"
        inside = path.is_dir() and not path.is_symlink()
        if not ours(f"{name}/" if inside else name) or (path.is_dir() and not inside):
            yield name
        elif inside:
            yield from _foreign(path, f"{name}/", ours)


def _flush(folder: Path) -> None:
    """Make the files, then their names, survive a power cut before the rename does."""
    for path in [*folder.rglob("*"), folder]:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
