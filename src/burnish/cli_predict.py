"""The predict verb: parse, call, print. Options are the fields of one record."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from typer import Argument, Option


@dataclass(frozen=True)
class Options:
    """What `burnish predict` takes."""

    model: Annotated[Path, Argument(help="A run of a vision recipe, or its model folder.")]
    source: Annotated[Path, Argument(help="A scan or picture, a folder of one DICOM series, or a folder of scans.")]
    out: Annotated[Path, Option(help="Folder of the labels.")] = Path("labels")
    engine: Annotated[str, Option(help="torch, onnx or int8; else the first that the folder has.")] = ""
    memory_gib: Annotated[float | None, Option(help="Memory for windows and scores; else as trained.")] = None
    overlap: Annotated[float | None, Option(help="Share of a window that the next one covers too.")] = None
    keep_largest: Annotated[
        bool | None, Option("--keep-largest/--keep-all", help="Of each class only the largest piece.")
    ] = None
    threads: Annotated[int, Option(help="Threads; 0: one a core.")] = 0


def predict(options: Options) -> None:
    """Label scans in their own grid; a folder goes on where it stopped, and what cannot be read is named."""
    from burnish.finished import require_vision

    require_vision("burnish predict")
    import torch

    from burnish.hardware import detect
    from burnish.progress import Screen
    from burnish.vision.bundle import labeller_of, open_bundle
    from burnish.vision.predict import predict as label

    threads = options.threads or detect().threads
    torch.set_num_threads(threads)
    bundle = open_bundle(options.model)
    changes = {name: getattr(options, name) for name in ("memory_gib", "overlap", "keep_largest")}
    engine = options.engine or bundle.engines[0]
    labeller = labeller_of(bundle, engine, threads, **changes)
    screen = Screen()
    with screen.task("label") as watch:
        made = label(bundle, labeller, engine, options.source, options.out, watch)
    before = f", {made.there} were there" if made.there else ""
    print(f"{options.out}: {len(made.written)} labelled by {bundle.card.recipe} ({engine}){before}")
    for number, name in enumerate(labeller.images.classes, start=1):
        print(f"  {number} {name}")
