"""One npm package as a file: downloaded by npm, held against a known hash; nothing of it is run or installed."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from pathlib import Path

from burnish.errors import UserError

SECONDS = 600  # npm is given


def download(package: str, version: str, sha256: str, scratch: Path) -> Path:
    """The .tgz of a package in the folder `scratch`.

    Raises UserError, one line with what to do, without npm or network, and where the registry has another file.
    """
    wanted, npm = f"{package}@{version}", shutil.which("npm")
    if npm is None:
        raise UserError(f"{wanted}: npm is not there to download it; install Node.js, which has it")
    command = [npm, "pack", "--silent", "--ignore-scripts", "--pack-destination", str(scratch), wanted]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, cwd=scratch, check=False)
    except subprocess.TimeoutExpired:
        raise UserError(f"{wanted}: npm has not ended after {SECONDS} s; is there a network?") from None
    files = list(scratch.glob("*.tgz"))
    if ran.returncode or len(files) != 1:
        said = [line for line in ran.stderr.splitlines() if line.strip()] or ["it said nothing"]
        raise UserError(f"{wanted}: npm could not download it ({said[0][:200]})")
    with files[0].open("rb") as stream:
        if hashlib.file_digest(stream, "sha256").hexdigest() != sha256:
            raise UserError(f"{wanted}: the registry gives another file than the known one; nothing was kept")
    return files[0]
