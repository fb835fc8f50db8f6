"""Regular files of a model folder: opened only where a link does not lead out of it, and read in whole, bounded pieces."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from burnish.errors import UserError
from burnish.units import show

_SNAPSHOTS, _BLOBS = "snapshots", "blobs"  # the hub's cache: snapshots/REVISION/NAME is a link to blobs/HASH


def inside(folder: Path, name: str) -> Path:
    """The path of the file `name` of a model folder, links not followed, so that messages name what the user sees.

    A symbolic link may lead to a file of the same folder, or, in a cache of the hub, to its blobs; one that leads
    elsewhere could make a downloaded folder read, and then export, somebody's private files. Raises UserError for it,
    for a missing file, and for what is no regular file (opening a pipe would wait for ever).
    """
    path = folder / name
    try:
        real, home = path.resolve(strict=True), folder.resolve(strict=True)
        mode = real.stat().st_mode
    except FileNotFoundError:
        gone = path.is_symlink()
        raise UserError(f"{path}: {'is a link to a file that is gone' if gone else 'no such file'}") from None
    except (OSError, RuntimeError, ValueError) as error:
        raise UserError(f"{path}: cannot be opened ({getattr(error, 'strerror', None) or error})") from None
    homes = [home]
    if home.parent.name == _SNAPSHOTS:
        homes.append(home.parent.with_name(_BLOBS))
    if not any(real.is_relative_to(allowed) for allowed in homes):
        raise UserError(f"{path}: is a link that leaves the folder, to {real}; copy the file into the folder instead")
    if not stat.S_ISREG(mode):
        raise UserError(f"{path}: is no regular file")
    return path


def there(folder: Path, name: str) -> bool:
    """Whether the folder has something of this name, a link that leads nowhere included."""
    path = folder / name
    return path.is_symlink() or path.exists()


def text_of(path: Path, most_bytes: int) -> bytes:
    """The bytes of a text file. Raises UserError when it cannot be read or is larger than `most_bytes`."""
    try:
        with path.open("rb") as stream:
            content = stream.read(most_bytes + 1)
            size = path.stat().st_size
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from None
    if len(content) > most_bytes:
        raise UserError(
            f"{path}: has {show(size, 'bytes')}, more than the {show(most_bytes, 'bytes')} read of such a file"
        )
    return content


def version_of(file: Path | int) -> tuple[int, ...]:
    """What changes when a file is written again: size, time of writing, and which file it is."""
    about = os.stat(file)
    return about.st_size, about.st_mtime_ns, about.st_ino


def changed(file: Path) -> UserError:
    """The error for a file that is no longer the one that was opened."""
    return UserError(f"{file}: was changed while it was being read; start again")
