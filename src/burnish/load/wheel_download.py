"""One wheel into a folder, through the package installer a user already has and its settings, held to a hash.

The installer keeps to the index, proxy and certificates that the user has set for it. pip alone downloads; uv unpacks as
well, and the files are packed again as a wheel would hold them, since what follows reads each by name and hash.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

from burnish.errors import UserError

_TICK = 0.1  # seconds between looks at how much has come
_PATIENCE = 5.0  # seconds the installer is given to stop
_PIP = ("-m", "pip", "--disable-pip-version-check", "--no-input", "--no-cache-dir", "--retries", "2", "download")
_UV = ("pip", "install", "--no-cache", "--quiet")
_ALIKE = ("--no-deps", "--require-hashes", "--only-binary", ":all:")


def download(requirement: str, sha256: str, size: int, work: Path, progress: Callable[[int, int], None]) -> Path:
    """The wheel of `requirement` ("name==version") as a file in `work`; `size` bytes are expected, told to `progress`.

    Raises UserError, one line with what to do, when there is no installer, no network, or another file at the index.
    """
    listed, into = work / "requirement.txt", work / "download"
    listed.write_text(f"{requirement} --hash=sha256:{sha256}\n", encoding="utf-8")
    into.mkdir()
    uv = shutil.which("uv")
    if importlib.util.find_spec("pip") is not None:
        command = [sys.executable, *_PIP, *_ALIKE, "--ignore-requires-python", "--dest", str(into), "-r", str(listed)]
    elif uv is not None:
        command = [uv, *_UV, "--python", sys.executable, *_ALIKE, "--target", str(into), "-r", str(listed)]
    else:
        raise UserError(f"{requirement}: neither pip nor uv is there to download it; install one: python -m ensurepip")
    code, said = _watched(command, work, lambda: progress(min(_bytes_in(work), size), size))
    if code:
        raise UserError(f"{requirement}: {_reason(said, requirement)}")
    progress(size, size)
    wheels = list(into.glob("*.whl"))
    return wheels[0] if len(wheels) == 1 else _packed(into, work / "unpacked.whl")


def _watched(command: Sequence[str], work: Path, tick: Callable[[], None]) -> tuple[int, str]:
    """Exit code and words of a command that keeps its own temporary files in `work`; it ends when we are stopped."""
    output, here = work / "said.txt", str(work)
    own = {"TMPDIR": here, "TMP": here, "TEMP": here, "PIP_REQUIRE_VIRTUALENV": "0"}  # nothing is installed anywhere
    with output.open("wb") as stream:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            env=os.environ | own,
            start_new_session=True,  # Ctrl-C reaches us alone, and we stop it
        )
        try:
            while process.poll() is None:
                tick()
                time.sleep(_TICK)
        finally:
            _stop(process)
    return process.returncode, output.read_text(encoding="utf-8", errors="replace")


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _bytes_in(folder: Path) -> int:
    """Bytes that have come so far: the largest file, as the installer may copy it once more at the end."""
    sizes = [0]
    for where, _, names in os.walk(folder):
        for name in names:
            try:
                sizes.append(os.stat(os.path.join(where, name)).st_size)
            except OSError:
                continue  # moved meanwhile
    return max(sizes)


# What the installers print -> what it means for who asked; the first that is found.
_REASONS = (
    (("do not match the hashes", "hash mismatch"), "the index gives another file than the known one; nothing was kept"),
    (("no space left",), "the disk is full"),
    (
        ("no matching distribution", "connection", "name resolution", "timed out", "no solution found"),
        "the package index cannot be reached or does not have it; where there is a network run "
        "`pip download --no-deps {requirement}`, then set PIP_FIND_LINKS (uv: UV_FIND_LINKS) to the folder the wheel is in",
    ),
)


def _reason(said: str, requirement: str) -> str:
    """One sentence of what an installer printed when it failed."""
    low = said.lower()
    meaning = next((meaning for marks, meaning in _REASONS if any(mark in low for mark in marks)), None)
    if meaning is None:
        lines = [line.strip() for line in said.splitlines() if line.strip()] or ["it said nothing"]
        errors = [line for line in lines if line.lower().startswith("error")]
        return f"the installer failed ({(errors or lines)[-1][:200]})"
    return meaning.format(requirement=requirement)


def _packed(folder: Path, wheel: Path) -> Path:
    """The files below `folder` under their names, stored as they are."""
    with zipfile.ZipFile(wheel, "w") as archive:
        for file in sorted(path for path in folder.rglob("*") if path.is_file()):
            archive.write(file, file.relative_to(folder).as_posix())
    return wheel
