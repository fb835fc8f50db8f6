"""The predict verb: parse, call, print. Options are the fields of one record."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

if TYPE_CHECKING:
    from burnish.vision.bundle import Bundle
    from burnish.vision.inference import Labeller


@dataclass(frozen=True)
class Options:
    """What `burnish predict` takes."""

    model: Annotated[Path, Argument(help="A run of a vision recipe, or its model folder.")]
    source: Annotated[Path, Argument(help="A scan or picture, a folder of one DICOM series, or a folder of either.")]
    out: Annotated[Path | None, Option(help="Folder of what is found; else labels, or boxes.")] = None
    engine: Annotated[str, Option(help="torch, onnx or int8; else the first that the folder has.")] = ""
    memory_gib: Annotated[float | None, Option(help="Memory for windows and scores; else as trained.")] = None
    overlap: Annotated[float | None, Option(help="Share of a window that the next one covers too.")] = None
    keep_largest: Annotated[
        bool | None, Option("--keep-largest/--keep-all", help="Of each class only the largest piece.")
    ] = None
    least_score: Annotated[float | None, Option(help="Boxes of a lower score are left out; else as trained.")] = None
    threads: Annotated[int, Option(help="Threads; 0: one a core.")] = 0


def predict(options: Options) -> None:
    """Label scans in their own grid, or find boxes in pictures; what cannot be read is named, the rest is done."""
    from burnish.finished import require_vision

    require_vision("burnish predict")
    import torch

    from burnish.hardware import detect
    from burnish.vision.bundle import labeller_of, open_bundle

    threads = options.threads or detect().threads
    torch.set_num_threads(threads)
    bundle = open_bundle(options.model)
    changes = {name: getattr(options, name) for name in ("memory_gib", "overlap", "keep_largest", "least_score")}
    engine = options.engine or bundle.engines[0]
    labeller = labeller_of(bundle, engine, threads, **changes)
    (_boxes if bundle.card.network.detects else _labels)(options, bundle, labeller, engine)


def _labels(options: Options, bundle: Bundle, labeller: Labeller, engine: str) -> None:
    from burnish.progress import Screen
    from burnish.vision.predict import predict as label

    out = options.out or Path("labels")
    with Screen().task("label") as watch:
        made = label(bundle, labeller, engine, options.source, out, watch)
    before = f", {made.there} were there" if made.there else ""
    print(f"{out}: {len(made.written)} labelled by {bundle.card.recipe} ({engine}){before}")
    for number, name in enumerate(labeller.images.classes, start=1):
        print(f"  {number} {name}")


def _boxes(options: Options, bundle: Bundle, labeller: Labeller, engine: str) -> None:
    from burnish.progress import Screen
    from burnish.vision.predict_boxes import predict_boxes

    out = options.out or Path("boxes")
    with Screen().task("find") as watch:
        made = predict_boxes(labeller, options.source, out, watch)
    print(f"{out}: boxes in {made.pictures} pictures by {bundle.card.recipe} ({engine})")
    wide = max(map(len, made.boxes))
    for name, count in made.boxes.items():
        print(f"  {name:<{wide}} {count:>6,}")
