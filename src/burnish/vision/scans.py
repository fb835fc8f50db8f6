"""Scans: volumes and pictures as arrays with the map from indices to millimetres, read from NIfTI, DICOM, NRRD, PNG, TIFF.

One convention everywhere: an affine takes indices to millimetres that grow to the right, front and top (RAS+, as NIfTI has
it). Files that keep left and back (DICOM, most NRRD) are turned once, here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from burnish.errors import UserError

NIFTI, NRRD, PICTURE, DICOM = (
    (".nii", ".nii.gz"),
    (".nrrd", ".nhdr"),
    (".png", ".tif", ".tiff", ".jpg", ".bmp"),
    (".dcm",),
)
SUFFIXES = (*NIFTI, *NRRD, *PICTURE, *DICOM)
LPS_TO_RAS = np.diag([-1.0, -1.0, 1.0, 1.0])
UNEVEN = 0.02  # of the spacing: how far slices of a series may be from evenly spaced


@dataclass(frozen=True, eq=False)
class Scan:
    """`array` [C, X, Y, Z] as stored, `affine` [4, 4] from (x, y, z) to RAS millimetres; a picture is [C, rows, columns, 1].

    `header` is what the file's own kind needs to be written again.
    """

    array: NDArray[Any]
    affine: NDArray[np.float64]
    kind: str
    header: Any = field(default=None, repr=False)

    @property
    def spacing(self) -> tuple[float, float, float]:
        """Millimetres between neighbours along each index."""
        x, y, z = np.linalg.norm(self.affine[:3, :3], axis=0)
        return float(x), float(y), float(z)


def suffix_of(path: Path) -> str:
    """The suffix of a known kind that a name ends in, "" for none."""
    return next((s for s in sorted(SUFFIXES, key=len, reverse=True) if path.name.lower().endswith(s)), "")


def stem_of(path: Path) -> str:
    """A file's name without the suffix of its kind."""
    return path.name[: len(path.name) - len(suffix_of(path))]


def read_scan(path: Path, label: bool = False) -> Scan:
    """The scan in a file, or of the one DICOM series in a folder; a `label` keeps its values as they are.

    Raises UserError, naming the file, for one that is missing, damaged or of no known kind.
    """
    suffix = suffix_of(path)
    if path.is_dir():
        reader: Callable[[Path, bool], Scan] = _read_dicom
    elif not path.is_file():
        raise UserError(f"{path}: no such file")
    else:
        kinds = {**dict.fromkeys(NIFTI, _read_nifti), **dict.fromkeys(NRRD, _read_nrrd)}
        kinds |= {**dict.fromkeys(PICTURE, _read_picture), **dict.fromkeys(DICOM, _read_dicom)}
        if suffix not in kinds:
            raise UserError(
                f"{path}: no known kind of image; known: {', '.join(SUFFIXES)}, or a folder of one DICOM series"
            )
        reader = kinds[suffix]
    try:
        scan = reader(path, label)
    except UserError:
        raise
    except Exception as error:  # the readers of files raise whatever they like for a damaged one
        said = " ".join(str(error).split())[:160] or type(error).__name__
        raise UserError(f"{path}: cannot be read ({said})") from None
    if not scan.array.size:
        raise UserError(f"{path}: holds no voxel")
    if scan.array.dtype.kind == "f" and not np.isfinite(scan.array).all():
        raise UserError(f"{path}: holds values that are not finite; clean it first")
    if not np.isfinite(scan.affine).all() or abs(np.linalg.det(scan.affine[:3, :3])) < 1e-12:
        raise UserError(f"{path}: its header gives no usable directions of its axes")
    return scan


def _read_nifti(path: Path, label: bool) -> Scan:
    import nibabel

    image: Any = nibabel.load(path)  # type: ignore[attr-defined]
    array = np.asanyarray(image.dataobj)
    if array.dtype.names:  # colours are stored as records
        array = np.stack([array[name] for name in array.dtype.names], axis=-1)
    array = array.reshape(*array.shape, *(1,) * (3 - array.ndim))
    if array.ndim > 4:
        array = array.reshape(*array.shape[:3], -1)
    array = np.moveaxis(array, 3, 0) if array.ndim == 4 else array[None]
    return Scan(array, np.asarray(image.affine, np.float64), "nifti", image.header)


def _read_nrrd(path: Path, label: bool) -> Scan:
    import nrrd

    array, header = nrrd.read(str(path), index_order="F")
    directions = np.atleast_2d(np.asarray(header.get("space directions", np.diag(_nrrd_spacing(header, array.ndim)))))
    spatial = [axis for axis in range(array.ndim) if axis >= len(directions) or np.isfinite(directions[axis]).all()]
    if len(spatial) < array.ndim:  # an axis without a direction holds channels
        array = np.moveaxis(array, [a for a in range(array.ndim) if a not in spatial], range(array.ndim - len(spatial)))
        array = array.reshape(-1, *array.shape[array.ndim - len(spatial) :])
    else:
        array = array[None]
    affine = np.eye(4)
    vectors = directions[[axis for axis in spatial if axis < len(directions)]]
    affine[: vectors.shape[1], : len(vectors)] = vectors.T
    affine[: vectors.shape[1], 3] = np.asarray(header.get("space origin", np.zeros(vectors.shape[1])))
    array = array.reshape(*array.shape, *(1,) * (4 - array.ndim))
    return Scan(array, _nrrd_signs(str(header.get("space", ""))) @ affine, "nrrd", dict(header))


def _nrrd_spacing(header: Any, count: int) -> NDArray[np.float64]:
    return np.asarray(header.get("spacings", np.ones(count)), np.float64)


def _nrrd_signs(space: str) -> NDArray[np.float64]:
    """What turns a file's axes to RAS; where it names none it is taken as LPS, as most writers have it."""
    words = space.lower().split("-")
    signs = np.eye(4)
    letters = space.lower() if space.lower() in ("ras", "lps", "las") else "".join(word[:1] for word in words)
    right, front = (letters[:1] != "r", letters[1:2] != "a") if letters else (True, True)
    signs[0, 0], signs[1, 1] = -1.0 if right else 1.0, -1.0 if front else 1.0
    return signs


def _read_picture(path: Path, label: bool) -> Scan:
    from PIL import Image, ImageSequence

    with Image.open(path) as image:
        pages = [_page(page, label) for page in ImageSequence.Iterator(image)]
    return Scan(np.stack(pages, axis=-1), np.eye(4), "picture", path.suffix.lower())


def _page(page: Any, label: bool) -> NDArray[Any]:
    """One page as [C, rows, columns]. Labels keep their numbers, colours lose transparency."""
    if page.mode in ("P", "CMYK", "YCbCr", "HSV") and not (label and page.mode == "P"):
        page = page.convert("RGB")
    array = np.asarray(page)
    array = array.astype(np.uint8) if array.dtype == bool else array
    if array.ndim == 2:
        return array[None]
    if label:
        raise UserError(f"a label picture has one channel, not {array.shape[2]}; write class numbers as grey values")
    array = array[..., :-1] if array.shape[2] in (2, 4) else array  # without transparency
    return np.moveaxis(array, 2, 0)


def _read_dicom(path: Path, label: bool) -> Scan:
    """A series as it stands in the patient: columns, rows, slices."""
    import pydicom

    files = sorted(p for p in path.iterdir() if p.is_file() and not p.name.startswith(".")) if path.is_dir() else [path]
    slices, ids = [], set()
    for file in files:
        if file.suffix.lower() in (".dcm", "") or pydicom.misc.is_dicom(file):
            found = pydicom.dcmread(file)
            if "PixelData" in found:
                slices.append(found)
                ids.add(str(found.get("SeriesInstanceUID", "")))
    if not slices:
        raise UserError(f"{path}: holds no DICOM image")
    if len(ids) > 1:
        raise UserError(f"{path}: holds {len(ids)} DICOM series; give each its own folder")
    axes = np.asarray(slices[0].get("ImageOrientationPatient", (1, 0, 0, 0, 1, 0)), np.float64).reshape(2, 3)
    normal = np.cross(axes[0], axes[1])
    places = [
        np.asarray(one.get("ImagePositionPatient", (0.0, 0.0, float(k))), np.float64) for k, one in enumerate(slices)
    ]
    order = np.argsort([float(normal @ place) for place in places], kind="stable")
    slices, places = [slices[k] for k in order], [places[k] for k in order]
    step = _step_between(path, slices, places, normal)
    between = np.asarray(slices[0].get("PixelSpacing", (1.0, 1.0)), np.float64)
    affine = np.eye(4)
    affine[:3, 0], affine[:3, 1], affine[:3, 2] = axes[0] * between[1], axes[1] * between[0], step
    affine[:3, 3] = places[0]
    return Scan(np.stack([_values(one) for one in slices], axis=-1)[None], LPS_TO_RAS @ affine, "dicom")


def _step_between(path: Path, slices: list[Any], places: list[Any], normal: NDArray[np.float64]) -> NDArray[np.float64]:
    """From one slice to the next. Raises UserError where one is missing or stands twice."""
    if len(places) == 1:
        return normal * float(slices[0].get("SpacingBetweenSlices", slices[0].get("SliceThickness", 1.0)) or 1.0)
    steps = np.diff([float(normal @ place) for place in places])
    if steps.min() <= 0 or steps.max() - steps.min() > UNEVEN * abs(float(np.median(steps))) + 1e-3:
        raise UserError(
            f"{path}: slices are {steps.min():.3g} to {steps.max():.3g} mm apart; one is missing or stands twice"
        )
    return np.asarray((places[-1] - places[0]) / (len(places) - 1), np.float64)


def _values(one: Any) -> NDArray[Any]:
    """Pixels of a slice as [columns, rows], in the units that its header says."""
    pixels = one.pixel_array.T
    slope, intercept = float(one.get("RescaleSlope", 1.0)), float(one.get("RescaleIntercept", 0.0))
    if (slope, intercept) == (1.0, 0.0):
        return np.asarray(pixels)
    return np.asarray(pixels.astype(np.float32) * np.float32(slope) + np.float32(intercept))
