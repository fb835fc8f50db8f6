"""Inference on one scan: from its file's values to labels in its own grid, within a stated memory."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from burnish.errors import UserError
from burnish.vision.prepared import image_of, space_of
from burnish.vision.scans import Scan
from burnish.vision.sections import Images, Inference, Network
from burnish.vision.space import Floats, Space, along, weights
from burnish.vision.windows import Predict, slabs

GIB = 2**30
LIVE = 8  # feature maps of the finest level that are alive at once in a forward pass


@dataclass(frozen=True)
class Labeller:
    """A network with all that stands around it: how images come to it and how its scores become labels."""

    predict: Predict
    network: Network
    images: Images
    inference: Inference

    @property
    def window(self) -> tuple[int, ...]:
        """Three sides; one slice of a network of slices."""
        assert self.images.patch is not None
        return (1, *self.images.patch) if self.network.dimensions == 2 else self.images.patch

    @property
    def batch(self) -> int:
        """Windows at once: as many as the recipe says, as far as half of the memory goes."""
        each = LIVE * self.network.channels[0] * int(np.prod(self.window)) * 4
        return max(1, min(self.inference.batch, int(self.inference.memory_gib * GIB / 2 / each)))


def of_module(model: nn.Module, device: str = "cpu") -> Predict:
    """A network as arrays in, arrays out; it is put into the mode for judging."""
    model.eval()

    def predict(pieces: Floats) -> Floats:
        with torch.inference_mode():
            found: Floats = model(torch.from_numpy(np.ascontiguousarray(pieces)).to(device)).float().cpu().numpy()
        return found

    return predict


def of_onnx(path: Path, threads: int = 0) -> Predict:
    """The network in an ONNX file, by onnxruntime. Raises UserError where it cannot be loaded."""
    import onnxruntime

    options: Any = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = threads
    try:
        session: Any = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime has no exception of its own
        raise UserError(f"{path}: cannot be loaded ({' '.join(str(error).split())[:160]})") from None
    name = session.get_inputs()[0].name

    def predict(pieces: Floats) -> Floats:
        found: Floats = session.run(None, {name: np.ascontiguousarray(pieces)})[0]
        return found

    return predict


def label_image(labeller: Labeller, image: Floats) -> NDArray[np.uint8]:
    """Labels [*spatial] of an image [C, *spatial] that is in the network's space already. Raises UserError for other axes."""
    check_channels(labeller, image)
    made = np.zeros(image.shape[1:], np.uint8)
    flat = labeller.network.dimensions == 2
    for first, scores in slabs(
        image, labeller.predict, labeller.window, labeller.inference.overlap, labeller.batch, flat
    ):
        made[first : first + scores.shape[1]] = scores.argmax(axis=0)
    return finish(labeller, made)


def check_channels(labeller: Labeller, image: Floats) -> None:
    """Raises UserError where the first axis does not hold the channels that the network takes."""
    wanted = labeller.network.in_channels
    if image.ndim != 4 or image.shape[0] != wanted:
        last = " (its last axis does: move it to the front)" if image.ndim == 4 and image.shape[-1] == wanted else ""
        raise UserError(
            f"an image has the axes channel, x, y, z with {wanted} channels; this one is {image.shape}{last}"
        )


def label_scan(labeller: Labeller, scan: Scan) -> NDArray[np.uint8]:
    """Labels [X, Y, Z] of a scan in its own grid, scores being brought back before the largest is taken.

    Scores that do not fit into half of the memory are kept in a file meanwhile.
    """
    space = space_of(scan, labeller.images, labeller.network.dimensions)
    image = image_of(scan, space, labeller.images)
    if space.size == space.turned:
        found = label_image(labeller, image)
    else:
        check_channels(labeller, image)
        with tempfile.TemporaryDirectory() as scratch:
            found = finish(labeller, _back(labeller, image, space, Path(scratch)))
    return np.ascontiguousarray(space.unturn(found)).astype(np.uint8)


def _back(labeller: Labeller, image: Floats, space: Space, scratch: Path) -> NDArray[np.uint8]:
    """Labels [*turned]: the scores of the network's grid, resampled a few slices of the file at a time."""
    memory = labeller.inference.memory_gib * GIB
    shape = (labeller.network.out_channels, *space.size)
    size = int(np.prod(shape)) * 2
    scores: NDArray[np.float16] = (
        np.zeros(shape, np.float16)
        if size < memory / 2
        else np.memmap(scratch / "scores", dtype=np.float16, mode="w+", shape=shape)
    )
    flat = labeller.network.dimensions == 2
    for first, found in slabs(
        image, labeller.predict, labeller.window, labeller.inference.overlap, labeller.batch, flat
    ):
        scores[:, first : first + found.shape[1]] = found
    ways = [weights(new, old) for old, new in zip(space.turned, space.size, strict=True)]
    made = np.zeros(space.turned, np.uint8)
    row = 3 * 4 * shape[0] * int(np.prod(np.maximum(space.turned, space.size)[1:]))
    rows = max(1, int(memory / 4 / row))
    for first in range(0, len(made), rows):
        own = ways[0][first : first + rows]
        used = np.flatnonzero(own.any(axis=0))
        part = np.asarray(scores[:, used[0] : used[-1] + 1], np.float32)
        for axis, way in enumerate((own[:, used[0] : used[-1] + 1], *ways[1:]), start=1):
            part = along(way, part, axis)
        made[first : first + rows] = part.argmax(axis=0)
    return made


def finish(labeller: Labeller, labels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The steps after the network that the recipe names."""
    return keep_largest(labels) if labeller.inference.keep_largest else labels


def keep_largest(labels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Of each class only the largest piece whose voxels touch face to face; the rest becomes background."""
    from scipy import ndimage

    label: Callable[..., Any] = ndimage.label
    made = labels.copy()
    for number in np.unique(labels[labels > 0]):
        pieces, count = label(labels == number)
        if count > 1:
            sizes = np.bincount(pieces.ravel())[1:]
            made[(pieces > 0) & (pieces != 1 + int(sizes.argmax()))] = 0
    return made
