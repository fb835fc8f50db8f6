"""VisionRequest: what is asked of a run of a vision recipe; no torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from burnish.vision.recipe import VisionRecipe


@dataclass(frozen=True)
class VisionRequest:
    """The recipe and what its lock held, the folder (None: runs/NAME), and how far to go."""

    recipe: VisionRecipe
    locked: dict[str, Any]
    name: str
    folder: Path | None
    fresh: bool
    stages: tuple[str, ...]
