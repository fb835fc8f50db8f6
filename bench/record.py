"""Record: write what a bench measured, with the day, the machine and the versions, to bench/results/NAME.json."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from burnish.hardware import detect
from burnish.lock import versions
from burnish.records import write_text

RESULTS = Path(__file__).parent / "results"


def record(name: str, values: Mapping[str, Any]) -> Path:
    """Write `values`, plain ones, under the names that the table in bars.py reads. Replaces an earlier result as a whole."""
    here = detect()
    content = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {"processor": here.name, "cores": here.threads, "system": platform.system()},
        "versions": versions(),
        "values": dict(values),
    }
    path = RESULTS / f"{name}.json"
    write_text(path, json.dumps(content, indent=1) + "\n")
    return path
