"""Files of a Debian package: downloaded by apt, held against known hashes, read without dpkg; nothing is installed or run."""

from __future__ import annotations

import hashlib
import io
import shutil
import subprocess
import tarfile
from collections.abc import Mapping
from pathlib import Path

from burnish.errors import UserError

SECONDS = 600  # apt is given
_HEAD = 60  # bytes before each member of an ar archive
_MAGIC = b"!<arch>\n"


def download(package: str, version: str, sha256: str, work: Path, kept: Path) -> Path:
    """The .deb of a package as a file: out of `kept`, where a user may have put it, else brought into `work` by apt.

    Raises UserError, one line with what to do, where there is no apt, no network, or another file at the mirror.
    """
    wanted = f"{package}={version}"
    for path in sorted(kept.glob(f"{package}_*.deb")) if kept.is_dir() else ():
        if _sha256(path) == sha256:
            return path
    if shutil.which("apt-get") is None:
        raise UserError(f"{wanted}: apt-get is not there to download it; put the .deb of a Debian mirror into {kept}")
    command = ["apt-get", "-qq", "-o", "APT::Sandbox::User=", "download", wanted]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, cwd=work, check=False)
    except subprocess.TimeoutExpired:
        raise UserError(f"{wanted}: apt-get has not ended after {SECONDS} s; is there a network?") from None
    files = sorted(work.glob("*.deb"))
    if ran.returncode or len(files) != 1:
        said = [line for line in ran.stderr.splitlines() if line.startswith("E:")] or ["it said nothing"]
        raise UserError(
            f"{wanted}: apt-get could not download it ({said[0][:160]}); run apt-get update, or put the .deb into {kept}"
        )
    if _sha256(files[0]) != sha256:
        raise UserError(f"{wanted}: the mirror gives another file than the known one; nothing was kept")
    return files[0]


def unpack(package: Path, files: Mapping[str, str]) -> dict[str, bytes]:
    """Content of the files at paths `files` (name -> path inside). Raises UserError for a damaged package or a missing file."""
    found: dict[str, bytes] = {}
    wanted = {inner: name for name, inner in files.items()}
    try:
        with tarfile.open(fileobj=io.BytesIO(_data(package.read_bytes()))) as archive:
            for member in archive:
                name = wanted.get(member.name.removeprefix("./"))
                stream = archive.extractfile(member) if name and member.isfile() else None
                if name and stream:
                    found[name] = stream.read()
    except (tarfile.TarError, ValueError, EOFError, OSError) as error:
        raise UserError(
            f"{package.name}: cannot be unpacked ({' '.join(str(error).split())}); nothing was kept"
        ) from None
    if missing := sorted(files.keys() - found.keys()):
        raise UserError(f"{package.name}: {files[missing[0]]} is not in it; nothing was kept")
    return found


def _data(archive: bytes) -> bytes:
    """The member of an ar archive that holds the files (deb(5))."""
    if not archive.startswith(_MAGIC):
        raise ValueError("no ar archive")
    at = len(_MAGIC)
    while at + _HEAD <= len(archive):
        name, size = archive[at : at + 16].decode("ascii").strip(), int(archive[at + 48 : at + 58])
        if name.startswith("data.tar"):
            return archive[at + _HEAD : at + _HEAD + size]
        at += _HEAD + size + size % 2
    raise ValueError("no data in it")


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
