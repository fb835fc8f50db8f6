"""Ranges of an ONNX file's values while images pass, clipped as a calibrator says."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from burnish.compress.calibrators import CALIBRATORS
from burnish.compress.ranges import Seen
from burnish.errors import UserError
from burnish.vision.onnx_providers import IMAGES, ON_CPU, opened_on

METHODS = {"minmax": "max", "entropy": "entropy", "percentile": "percentile", "mse": "mse"}  # -> calibrator
PERCENT = 99.99
Images = NDArray[np.float32]


@dataclass(frozen=True)
class Range:
    """Smallest and largest value that the integers represent; 0 lies between."""

    low: float
    high: float


def watch(model: Any, names: Iterable[str], samples: Iterable[Images]) -> dict[str, Seen]:
    """What the values of an ONNX model are while samples [B, C, *spatial] pass.

    Raises UserError where a value is not finite, and where there are no samples.
    """
    import onnx

    wanted = sorted(set(names))
    watched = onnx.ModelProto()
    watched.CopyFrom(model)
    given = {one.name for one in model.graph.input}
    already = {one.name for one in watched.graph.output}
    watched.graph.output.extend(onnx.helper.make_empty_tensor_value_info(n) for n in wanted if n not in given | already)
    session = opened_on(watched.SerializeToString(), wanted=ON_CPU)
    inner = [name for name in wanted if name not in given]
    found = {name: Seen() for name in wanted}
    for images in samples:
        values = dict(zip(inner, session.run(inner, {IMAGES: images}), strict=True)) if inner else {}
        for name in wanted:
            try:
                found[name].add(torch.from_numpy(np.ascontiguousarray(values.get(name, images))).reshape(1, -1))
            except ValueError as error:
                raise UserError(f"{name}: holds {error}; is the model sound, and are the images?") from None
    if wanted and not found[wanted[0]].histogram.seen:
        raise UserError("int8: no calibration images; give one batch at least")
    return found


def ranges(seen: Mapping[str, Seen], method: str) -> dict[str, Range]:
    """The range of each value by a method of `METHODS`. Raises UserError for any other."""
    if method not in METHODS:
        raise UserError(f"int8: method {method!r} is unknown; use {', '.join(METHODS)}")
    found = {}
    for name, one in seen.items():
        most = CALIBRATORS[METHODS[method]](one.histogram, PERCENT)
        found[name] = Range(max(min(one.low, 0.0), -most), min(max(one.high, 0.0), most))
    return found
