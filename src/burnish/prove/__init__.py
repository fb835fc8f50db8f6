"""Prove: claims about techniques, each measured on the user's own machine. One file a claim, by its name."""

from __future__ import annotations

import importlib
import json
import time
from pathlib import Path

from burnish.errors import UserError, nearest
from burnish.progress import Screen
from burnish.prove.claim import Verdict

PLANNED = {"mapping"}  # claims that need no torch
VISION = {"pruning", "segmentation"}  # claims about networks of images


def claims() -> list[str]:
    """Names of the claims that can be measured."""
    return sorted(
        path.stem.replace("_", "-") for path in Path(__file__).parent.glob("[a-z]*.py") if path.stem != "claim"
    )


def prove(claim: str | None = None) -> list[Verdict]:
    """Measure one claim, or all and say on standard error how far it is.

    Raises UserError for an unknown name, and MissingExtra, before anything is measured, for what is not installed.
    """
    names = claims()
    if claim is not None and claim not in names:
        raise UserError(f"claim {claim!r}: {nearest(claim, names)}")
    _require(names if claim is None else [claim])
    if claim is not None:
        return [_measure(claim)]
    found: list[Verdict] = []
    with Screen().task("prove") as watch:
        for name in names:
            watch(len(found), len(names), name)
            found.append(_measure(name))
    return found


def _require(names: list[str]) -> None:
    from burnish.finished import require_torch, require_vision

    if not PLANNED.issuperset(names):
        require_torch("prove")
    if not VISION.isdisjoint(names):
        require_vision("prove" if len(names) > 1 else f"prove {names[0]}")


def _measure(name: str) -> Verdict:
    began = time.perf_counter()
    verdict: Verdict = importlib.import_module(f"burnish.prove.{name.replace('-', '_')}").measure()
    return verdict.model_copy(update={"seconds": time.perf_counter() - began})


def as_json(verdicts: list[Verdict]) -> str:
    """The verdicts as JSON."""
    return json.dumps([verdict.model_dump() for verdict in verdicts], indent=1)
