"""What a table of a search is for: the model, the samples and the settings it was made with."""

from __future__ import annotations

from typing import Any

from burnish.records import Frozen

SHORT = 12  # digits of a fingerprint that a message shows


class Key(Frozen):
    """What a table is for: fingerprints of weights and samples ("" without samples), and all settings."""

    model: str
    samples: str
    config: dict[str, Any]
