"""Lock: what, besides the recipe, decides the result of a run; written with it and checked when it is run again."""

from __future__ import annotations

import importlib.metadata
import platform
from typing import Any

from burnish import __version__
from burnish.errors import UserError

PACKAGES = ("torch", "numpy", "tokenizers", "safetensors", "pydantic")


def versions() -> dict[str, str]:
    """Versions of everything that takes part in a number."""
    found = {"burnish": __version__, "python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def make_lock(fingerprints: dict[str, str], processor: str, device: str) -> dict[str, Any]:
    """The `lock` part of a lock file. The seed and the thread count stand in the recipe beside it."""
    return {"data": fingerprints, "versions": versions(), "machine": {"processor": processor, "device": device}}


def check_lock(lock: dict[str, Any], current: dict[str, Any], where: str) -> list[str]:
    """Compare a lock with what a run has found. Other data is an error; another version or machine is a note.

    Raises UserError naming the text whose content has changed.
    """
    for name, fingerprint in lock.get("data", {}).items():
        if current["data"].get(name) != fingerprint:
            raise UserError(
                f"{where}: data.{name} is not the text that was locked (sha256 {fingerprint[:12]}, now "
                f"{str(current['data'].get(name))[:12]}); restore it, or run the recipe without the lock"
            )
    notes = []
    for part in ("versions", "machine"):
        for name, old in lock.get(part, {}).items():
            if (new := current[part].get(name)) != old:
                notes.append(f"locked with {name} {old}, run with {new}: losses may differ in their last bits")
    return notes
