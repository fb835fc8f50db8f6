"""ONNX files of convolutional networks that are not ours, of any batch and any size of images, checked against torch.

Two exporters of PyTorch write such files. The one that follows a run writes the same operators in a hundredth of the time, since
convolutions and norms hold no sizes; the one that reads the program is asked where what the first wrote fails the check.
"""

from __future__ import annotations

import contextlib
import io
import os
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from burnish.errors import UserError
from burnish.export.onnx_session import need_onnx
from burnish.records import replaced
from burnish.vision.onnx_providers import IMAGES, ON_CPU, SCORES, SILENT, opened_on
from burnish.vision.operators import Sizes

OPSET = 18
BATCHES = (1, 3)  # that a file is checked at; it is traced at two, so that no size is 1
ALLOWED = 1e-4  # of the largest score, or of 1


@dataclass(frozen=True)
class Exported:
    """A file. `difference`: largest of scores, over the checks, as a share of the largest score or of 1.

    `multiple`: sides of images are multiples of this; 1: any size that the network takes.
    """

    path: Path
    exporter: str
    difference: float
    multiple: int
    bytes: int


def export(model: nn.Module, sizes: Sizes, path: Path, multiple: int = 16) -> Exported:
    """Write a model that reads images [B, C, *spatial] of `sizes` to `path`, whole or not at all.

    Checked at two batches and at other sizes, `multiple` more on a side; and at odd ones, where the network takes them.
    Raises UserError where no exporter writes a file that says what the model says.
    """
    need_onnx(f"{path}: writing an ONNX file")
    target = replaced(path)
    was = model.training
    model.eval()
    said = []
    try:
        for name, write in EXPORTERS.items():
            with _fresh(target) as fresh:
                try:
                    write(model, torch.zeros(2, *sizes[1:]).to(next(model.parameters()).device), fresh)
                except Exception as error:  # of many kinds, none of them public
                    said.append(f"{name}: {' '.join(str(error).split())[:120]}")
                    continue
                difference = _farthest(fresh, model, _checks(sizes, multiple))
                if not difference <= ALLOWED:
                    said.append(f"{name}: scores differ by {difference:.2g}")
                    continue
                any_size = _farthest(fresh, model, _odd(model, sizes)) <= ALLOWED
                os.replace(fresh, target)
                return Exported(path, name, difference, 1 if any_size else multiple, target.stat().st_size)
    finally:
        model.train(was)
    raise UserError(f"{path}: no exporter writes {type(model).__name__} as ONNX ({'; '.join(said)})")


@contextlib.contextmanager
def _fresh(target: Path) -> Iterator[Path]:
    """A name of its own beside the target; gone afterwards."""
    fresh = target.with_name(f".{target.name}.{os.getpid()}.writing")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        yield fresh
    except OSError as error:
        raise UserError(f"{target}: cannot be written ({error.strerror or error}); choose a writable folder") from None
    finally:
        fresh.unlink(missing_ok=True)


def _axes(images: torch.Tensor) -> dict[int, str]:
    return {0: "batch", **{axis: f"side_{axis - 1}" for axis in range(2, images.dim())}}


def _by_run(model: nn.Module, images: torch.Tensor, path: Path) -> None:
    axes = _axes(images)
    _write(model, images, path, dynamo=False, dynamic_axes={IMAGES: axes, SCORES: axes})


def _by_program(model: nn.Module, images: torch.Tensor, path: Path) -> None:
    free = dict.fromkeys(_axes(images), torch.export.Dim.DYNAMIC)
    _write(model, images, path, dynamo=True, dynamic_shapes=(free,), external_data=False)


def _write(model: nn.Module, images: torch.Tensor, path: Path, **settings: Any) -> None:
    """What exporters print and warn of is for those who write them; the check tells what matters."""
    names: dict[str, Any] = {"input_names": [IMAGES], "output_names": [SCORES]}
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        torch.onnx.export(model, (images,), str(path), opset_version=OPSET, **names, **settings)


EXPORTERS: dict[str, Callable[[nn.Module, torch.Tensor, Path], None]] = {"run": _by_run, "program": _by_program}


def _checks(sizes: Sizes, multiple: int) -> list[Sizes]:
    """The traced size at one batch, other sizes at another; no side of the latter is as another."""
    other = tuple(side + multiple * (1 + axis) for axis, side in enumerate(sizes[2:]))
    return [(BATCHES[0], *sizes[1:]), (BATCHES[1], sizes[1], *other)]


def _odd(model: nn.Module, sizes: Sizes) -> list[Sizes]:
    """Odd sides, where the network itself takes them."""
    odd = (1, sizes[1], *(side + 1 + 2 * axis for axis, side in enumerate(sizes[2:])))
    try:
        with torch.no_grad():
            model(torch.zeros(odd, device=next(model.parameters()).device))
    except RuntimeError:
        return []
    return [odd]


def _farthest(path: Path, model: nn.Module, checks: list[Sizes]) -> float:
    """Largest difference of scores, relative; infinite where the file does not run."""
    if not checks:
        return np.inf
    try:
        session = opened_on(path, wanted=ON_CPU, severity=SILENT)
        return max(difference(session, model, size) for size in checks)
    except Exception:  # onnxruntime's own kinds have no common base
        return np.inf


@torch.no_grad()
def difference(session: Any, model: nn.Module, sizes: Sizes) -> float:
    """Largest difference between a file's scores and a model's, on drawn images of `sizes`, by the largest score or 1."""
    device = next(model.parameters()).device
    images = torch.randn(sizes, generator=torch.Generator().manual_seed(sum(sizes)))
    wanted = model(images.to(device)).float().cpu().numpy()
    found = session.run(None, {IMAGES: images.numpy()})[0]
    if found.shape != wanted.shape or not np.isfinite(found).all():
        return np.inf
    return float(np.abs(found - wanted).max() / max(1.0, float(np.abs(wanted).max())))
