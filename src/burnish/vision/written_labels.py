"""Labels written back: a file of the input's own kind, grid and directions, whole or not at all."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from burnish.errors import UserError
from burnish.vision.scans import Scan, stem_of


def name_for(source: Path, scan: Scan) -> str:
    """The name of the labels of a scan: its own, as NIfTI where its kind has no labels, as PNG where it would lose some."""
    ends = {"nifti": ".nii.gz", "nrrd": ".nrrd", "dicom": ".nii.gz"}
    many = scan.kind == "picture" and scan.array.shape[-1] > 1
    end = ends.get(scan.kind, ".tif" if many or str(scan.header).startswith(".tif") else ".png")
    return (source.name if source.is_dir() else stem_of(source)) + end


def write_labels(path: Path, labels: NDArray[Any], like: Scan) -> None:
    """Write `labels` [X, Y, Z], in the grid of `like`. Raises UserError where it cannot be written."""
    kind = np.uint8 if labels.max(initial=0) < 256 else np.uint16
    temporary = path.with_name(f".{os.getpid()}.{path.name}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        WRITERS[like.kind](temporary, np.ascontiguousarray(labels.astype(kind)), like)
        os.replace(temporary, path)
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror or error}); choose a writable folder") from None
    finally:
        with suppress(OSError):
            temporary.unlink()


def _nifti(path: Path, labels: NDArray[Any], like: Scan) -> None:
    import nibabel

    made: Any = nibabel.Nifti1Image(labels, like.affine)  # type: ignore[attr-defined]
    if like.header is not None:
        made.header.set_xyzt_units(*like.header.get_xyzt_units())
        made.set_sform(like.affine, int(like.header["sform_code"]) or 1)
        made.set_qform(like.affine, int(like.header["qform_code"]) or 1, strip_shears=True)
    nibabel.save(made, path)  # type: ignore[attr-defined]


def _nrrd(path: Path, labels: NDArray[Any], like: Scan) -> None:
    import nrrd

    lps = np.diag([-1.0, -1.0, 1.0, 1.0]) @ like.affine
    header = {
        "space": "left-posterior-superior",
        "space directions": lps[:3, :3].T,
        "space origin": lps[:3, 3],
        "encoding": "gzip",
    }
    nrrd.write(str(path), labels, header, index_order="F")


def _picture(path: Path, labels: NDArray[Any], like: Scan) -> None:
    from PIL import Image

    pages = [Image.fromarray(labels[..., k]) for k in range(labels.shape[-1])]
    kind = "TIFF" if path.suffix == ".tif" else "PNG"
    more = {"save_all": True, "append_images": pages[1:]} if len(pages) > 1 else {}
    pages[0].save(path, format=kind, **more)


WRITERS = {"nifti": _nifti, "dicom": _nifti, "nrrd": _nrrd, "picture": _picture}
