"""All checks on an accelerator in one table: gpu_check.json and gpu_check.md, with the day and the chip."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import torch

import gpu_allocator
import gpu_attention
import gpu_decoder
import gpu_fp8
from burnish.lock import versions
from burnish.records import write_text
from gpu_row import Row

RESULTS = Path(__file__).parent / "results"
LIMIT = 540.0  # seconds after which no further section begins, and a section stops
SECTIONS: dict[str, Callable[[str], Iterator[Row]]] = {
    "decoder": gpu_decoder.check,
    "fp8": gpu_fp8.check,
    "allocator": gpu_allocator.check,
    "attention": gpu_attention.check,
}


def collect(
    sections: dict[str, Callable[[str], Iterator[Row]]], device: str, limit: float = LIMIT
) -> tuple[list[Row], list[str]]:
    """Rows of every section, and a line for each that failed or was not reached; one that fails keeps the rows it had."""
    began, rows, notes = time.perf_counter(), [], []
    for name, section in sections.items():
        try:
            for row in section(device):
                rows.append(row)
                print(f"{time.perf_counter() - began:5.0f} s  {line(row)}", flush=True)
                if time.perf_counter() - began > limit:
                    notes.append(f"{name}: stopped after {limit:.0f} s")
                    break
        except Exception as error:
            notes.append(f"{name}: {type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}")
            print(notes[-1], flush=True)
    return rows, notes


def line(row: Row) -> str:
    """A row as a line of a table."""
    beside = "" if row.beside is None else f"{row.beside:.4g} ({row.other})"
    return f"| {row.section} | {row.setting} | {row.what} | {row.measured:.4g} {row.unit} | {beside} |"


def page(rows: list[Row], notes: list[str], chip: str, day: str) -> str:
    """The table in Markdown."""
    head = [f"`scripts/gpu_check` on {chip}, {day}, torch {torch.__version__}", "", "| | | | measured | beside |"]
    return "\n".join([*head, "|---|---|---|---|---|", *map(line, rows), *(f"\n{note}" for note in notes), ""])


def write(folder: Path, rows: list[Row], notes: list[str], chip: str) -> Path:
    """Both files, as JSON and as a page; gives the first."""
    folder.mkdir(parents=True, exist_ok=True)
    day = datetime.now(UTC).isoformat(timespec="seconds")
    content = {"date": day, "chip": chip, "versions": versions(), "rows": list(map(asdict, rows)), "notes": notes}
    write_text(folder / "gpu_check.json", json.dumps(content, indent=1) + "\n")
    write_text(folder / "gpu_check.md", page(rows, notes, chip, day))
    return folder / "gpu_check.json"


def main(arguments: list[str]) -> int:
    """Run and write; 2 without a CUDA device, 1 when a section failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--only", choices=SECTIONS, nargs="*", default=list(SECTIONS))
    asked = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        print("gpu_check: no CUDA device was found here; run it on a machine that has one", file=sys.stderr)
        return 2
    rows, notes = collect({name: SECTIONS[name] for name in asked.only}, "cuda")
    print(write(asked.out, rows, notes, torch.cuda.get_device_name()))
    return 1 if notes else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
