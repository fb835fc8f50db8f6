"""COCO's annotations: one JSON file of images, categories and boxes as left, top, width and height, with crowds.

Source: the format of Lin et al. 2014, arXiv 1405.0312, as cocodataset.org describes it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from burnish.errors import UserError
from burnish.vision.annotations.annotation import Annotated, Box, Picture

FOLDER = "images"  # beside the file, where pictures may lie


def read(path: Path) -> Annotated:
    """The annotations in a file; pictures lie beside it, or in a folder `images` there.

    Raises UserError naming file and picture for what is missing or no number.
    """
    try:
        content: Any = json.loads(path.read_text(encoding="utf-8"))
        rows = (content["images"], content["categories"], content["annotations"])
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read as COCO annotations ({error})") from None
    except (KeyError, TypeError) as error:
        raise UserError(f"{path}: has no list {error}; COCO has images, categories and annotations") from None
    names = {row["id"]: str(row["name"]) for row in rows[1]}
    boxes: dict[Any, list[Box]] = {}
    for row in rows[2]:
        try:
            left, top, width, height = (float(side) for side in row["bbox"])
            own = Box(names[row["category_id"]], left, top, width, height, bool(row.get("iscrowd", 0)))
            boxes.setdefault(row["image_id"], []).append(own)
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"{path}: annotation {row.get('id', '?')}: {error} is missing or no number") from None
    pictures = []
    for row in rows[0]:
        places = [path.parent / row["file_name"], path.parent / FOLDER / row["file_name"]]
        place = next((one for one in places if one.is_file()), None)
        if place is None:
            raise UserError(f"{path}: picture {row['file_name']!r} is not there; put it at {places[0]}")
        own_boxes = tuple(boxes.get(row["id"], ()))
        pictures.append(Picture(row["file_name"], place, int(row["width"]), int(row["height"]), own_boxes))
    return Annotated(tuple(names.values()), tuple(pictures))
