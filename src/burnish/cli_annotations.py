"""The annotations verb: parse, call, print. Options are the fields of one record."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from typer import Argument, Option


@dataclass(frozen=True)
class Options:
    """What `burnish annotations` takes."""

    path: Annotated[Path, Argument(help="A folder or file of annotations.")]
    format: Annotated[str | None, Option(help="coco, voc, kitti or yolo; else what the files are.")] = None
    images: Annotated[Path | None, Option(help="Folder of the pictures, where they lie elsewhere.")] = None
    to: Annotated[str | None, Option(help="Also write them as coco, voc, kitti or yolo.")] = None
    out: Annotated[Path | None, Option(help="New folder that --to writes into, pictures included.")] = None


def check_annotations(options: Options) -> None:
    """Check boxes of pictures, print what each class has, and write them in another format."""
    from burnish import streams
    from burnish.errors import UserError
    from burnish.finished import require_pictures
    from burnish.vision.annotations.read import looked_at
    from burnish.vision.annotations.table import table
    from burnish.vision.annotations.write import write

    require_pictures("burnish annotations")
    if (options.to is None) != (options.out is None):
        raise UserError("--to FORMAT and --out FOLDER belong together")
    found = looked_at(options.path, options.format, options.images)
    for line in found.problems:
        print(streams.printable(line))
    if found.problems:
        raise UserError(f"{options.path}: {len(found.problems)} problems, listed above; nothing was written")
    pictures, boxes = found.annotated.pictures, sum(len(one.boxes) for one in found.annotated.pictures)
    print(f"{options.path}: {found.format}, {len(pictures)} pictures with {boxes} boxes")
    for line in table(found.annotated):
        print(streams.printable(line))
    if options.to and options.out:
        notes = write(found.annotated, options.to, options.out)
        print(f"{options.out}: written as {options.to}")
        for note in notes:
            print(f"note: {note}")
