"""Whether torch is installed: listing and inspecting models does without it, reading weights does not."""

from __future__ import annotations

import importlib.util

from burnish.errors import MissingExtra


def torch_here() -> bool:
    """Whether torch can be imported; looks it up without loading it."""
    try:
        return importlib.util.find_spec("torch") is not None
    except ValueError:  # it was put out of reach on purpose
        return False


def need_torch(what: str) -> None:
    """Raises MissingExtra, saying `what` needs it, where torch is not installed."""
    if not torch_here():
        raise MissingExtra(what, "train", "torch")
