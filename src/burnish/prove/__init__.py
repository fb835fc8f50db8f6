"""Prove: claims about techniques, each measured on the user's own machine. One file a claim, by its name."""

from __future__ import annotations

import importlib
import json
import time
from pathlib import Path

from burnish.errors import UserError, nearest
from burnish.prove.claim import Verdict


def claims() -> list[str]:
    """Names of the claims that can be measured."""
    return sorted(
        path.stem.replace("_", "-") for path in Path(__file__).parent.glob("[a-z]*.py") if path.stem != "claim"
    )


def prove(claim: str | None = None) -> list[Verdict]:
    """Measure one claim, or all. Raises UserError for an unknown name."""
    names = claims()
    if claim is not None and claim not in names:
        raise UserError(f"claim {claim!r}: {nearest(claim, names)}")
    return [_measure(name) for name in ([claim] if claim else names)]


def _measure(name: str) -> Verdict:
    began = time.perf_counter()
    verdict: Verdict = importlib.import_module(f"burnish.prove.{name.replace('-', '_')}").measure()
    return verdict.model_copy(update={"seconds": time.perf_counter() - began})


def as_json(verdicts: list[Verdict]) -> str:
    """The verdicts as JSON."""
    return json.dumps([verdict.model_dump() for verdict in verdicts], indent=1)
