"""Small scans with one bright voxel, in every kind of file, for the tests of vision."""

import nibabel as nib
import nrrd
import numpy as np
import pydicom
from PIL import Image
from pydicom.dataset import FileDataset, FileMetaDataset
from pydicom.uid import CTImageStorage, ExplicitVRLittleEndian, generate_uid

SHAPE, MARK = (9, 8, 6), (6, 2, 4)  # no two axes alike, and the mark near no centre
OBLIQUE = np.array([[1.9, -0.3, 0.2, -7.0], [0.3, 1.5, -0.4, 3.0], [-0.2, 0.4, 2.5, 11.0], [0, 0, 0, 1]])
AFFINES = {
    "ras": np.diag([2.0, 1.5, 3.0, 1.0]),
    "las": np.diag([-2.0, 1.5, 3.0, 1.0]),
    "lps": np.diag([-2.0, -1.5, 3.0, 1.0]),
    "permuted": np.array([[0, 0, 2.0, 5], [-1.5, 0, 0, 2], [0, 3.0, 0, -4], [0, 0, 0, 1]]),
    "oblique": OBLIQUE,
}


def marked(dtype=np.int16, shape=SHAPE, mark=MARK):
    """A dark ramp with one bright voxel."""
    array = np.arange(np.prod(shape)).reshape(shape) % 7
    array = array.astype(dtype)
    array[mark] = 100
    return array


def write_nifti(path, array, affine):
    nib.save(nib.Nifti1Image(array, affine), path)
    return path


def write_nrrd(path, array, affine, space="left-posterior-superior"):
    signs = {"left-posterior-superior": (-1, -1, 1, 1), "right-anterior-superior": (1, 1, 1, 1)}[space]
    file = np.diag(np.array(signs, float)) @ affine
    header = {"space": space, "space directions": file[:3, :3].T, "space origin": file[:3, 3]}
    nrrd.write(str(path), array, header, index_order="F")
    return path


def write_series(folder, array, affine, order=None):
    """A DICOM series of [columns, rows, slices]; its files are named in another order than they lie."""
    folder.mkdir(parents=True, exist_ok=True)
    lps = np.diag([-1.0, -1.0, 1.0, 1.0]) @ affine
    steps = np.linalg.norm(lps[:3, :3], axis=0)
    series = generate_uid()
    for k in range(array.shape[2]):
        meta = FileMetaDataset()
        meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID = CTImageStorage, generate_uid()
        meta.TransferSyntaxUID = ExplicitVRLittleEndian
        one = FileDataset("", {}, file_meta=meta, preamble=b"\0" * 128)
        one.SOPClassUID, one.SOPInstanceUID = meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID
        one.SeriesInstanceUID, one.Modality = series, "CT"
        one.ImageOrientationPatient = [*(lps[:3, 0] / steps[0]), *(lps[:3, 1] / steps[1])]
        one.ImagePositionPatient = list(lps[:3, 3] + k * lps[:3, 2])
        one.PixelSpacing = [steps[1], steps[0]]
        one.Rows, one.Columns = array.shape[1], array.shape[0]
        one.SamplesPerPixel, one.PhotometricInterpretation = 1, "MONOCHROME2"
        one.BitsAllocated, one.BitsStored, one.HighBit, one.PixelRepresentation = 16, 16, 15, 1
        one.RescaleSlope, one.RescaleIntercept = 2, -10
        one.PixelData = ((array[:, :, k].T + 10) // 2).astype("<i2").tobytes()
        place = k if order is None else order[k]
        pydicom.dcmwrite(folder / f"{(place * 7) % 31:03d}.dcm", one, enforce_file_format=True)
    return folder


def write_picture(path, array):
    """[rows, columns] or [rows, columns, colours]."""
    Image.fromarray(array).save(path)
    return path
