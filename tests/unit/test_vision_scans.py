"""Scans: every kind of file gives the same array and the same map to the patient, and labels go back into the file's grid."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import scan_files as files
from burnish.errors import UserError
from burnish.vision.scans import read_scan
from burnish.vision.space import Space, weights
from burnish.vision.written_labels import name_for, write_labels

RIGID = {name: affine for name, affine in files.AFFINES.items() if name != "oblique"}


def world_of_mark(scan):
    """Where in the patient the bright voxel lies."""
    at = np.unravel_index(np.argmax(scan.array[0]), scan.array.shape[1:])
    return scan.affine @ [*at, 1.0]


@pytest.mark.parametrize("name", files.AFFINES)
def test_nifti_and_nrrd_put_the_mark_at_one_place(tmp_path, name):
    """FLT-118, FLT-119: NRRD's axes are not reversed, and LPS is turned once."""
    affine, array = files.AFFINES[name], files.marked()
    expected = affine @ [*files.MARK, 1.0]
    for path in (
        files.write_nifti(tmp_path / "a.nii.gz", array, affine),
        files.write_nrrd(tmp_path / "lps.nrrd", array, affine),
        files.write_nrrd(tmp_path / "ras.nrrd", array, affine, "right-anterior-superior"),
    ):
        scan = read_scan(path)
        np.testing.assert_allclose(world_of_mark(scan), expected, atol=1e-5)
        np.testing.assert_array_equal(scan.array[0], array)


@pytest.mark.parametrize("name", RIGID)
def test_a_dicom_series_is_sorted_scaled_and_placed(tmp_path, name):
    affine, array = files.AFFINES[name], files.marked() * 2  # as the rescaling has it: even numbers
    scan = read_scan(files.write_series(tmp_path / "series", array, affine, order=[3, 0, 5, 1, 4, 2]))
    np.testing.assert_allclose(world_of_mark(scan), affine @ [*files.MARK, 1.0], atol=1e-5)
    assert scan.array.max() == 200


def test_a_series_with_a_slice_missing_is_refused(tmp_path):
    folder = files.write_series(tmp_path / "s", files.marked(), files.AFFINES["ras"])
    sorted(folder.iterdir())[2].unlink()
    with pytest.raises(UserError, match="missing"):
        read_scan(folder)


@pytest.mark.parametrize("name", files.AFFINES)
@pytest.mark.parametrize("spacing", [None, (2.0, 2.0, 2.0), (1.3, 2.9, 4.1)])
@pytest.mark.parametrize("slices", [None, 0, 2])
def test_the_networks_grid_is_ras_and_lies_where_the_file_does(name, spacing, slices):
    """The centre of the field of view stays; each axis of the network points to the right, the front or the top."""
    affine = files.AFFINES[name]
    space = Space.of(files.SHAPE, affine, spacing, slices)
    middle = affine @ [*((np.array(files.SHAPE) - 1) / 2), 1.0]
    np.testing.assert_allclose(space.network_affine @ [*((np.array(space.size) - 1) / 2), 1.0], middle, atol=1e-9)
    directions = space.network_affine[:3, :3]
    main = np.abs(directions).argmax(axis=0)
    assert sorted(main) == [0, 1, 2]
    assert all(directions[axis, k] > 0 for k, axis in enumerate(main))
    if slices is not None:
        assert main[0] == slices


@pytest.mark.parametrize("name", files.AFFINES)
@pytest.mark.parametrize("slices", [None, 1])
def test_a_mark_goes_to_the_network_and_back(name, slices):
    affine, array = files.AFFINES[name], files.marked()
    space = Space.of(files.SHAPE, affine, None, slices)
    there = space.image(array[None])[0]
    at = np.unravel_index(there.argmax(), there.shape)
    np.testing.assert_allclose(space.network_affine @ [*at, 1.0], affine @ [*files.MARK, 1.0], atol=1e-9)
    np.testing.assert_array_equal(space.unturn(there), array)
    np.testing.assert_array_equal(space.unturn(space.labels(array)), array)


@pytest.mark.sabotage
def test_a_flip_that_is_left_out_is_noticed(monkeypatch):
    """FLT-119."""
    monkeypatch.setattr(Space, "turn", lambda self, array: array.transpose(0, *(axis + 1 for axis in self.order)))
    with pytest.raises(AssertionError):
        test_a_mark_goes_to_the_network_and_back("las", None)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 40), st.integers(1, 40))
def test_resampling_keeps_constants_and_the_mean(old, new):
    matrix = weights(old, new)
    np.testing.assert_allclose(matrix.sum(axis=1), 1.0, rtol=1e-5)
    assert matrix.min() >= 0
    line = np.arange(old) - (old - 1) / 2
    assert (matrix @ line).mean() == pytest.approx(0.0, abs=1e-5)


@pytest.mark.parametrize("dtype", [np.uint16, np.float64, np.int8, np.float32, np.uint8])
def test_types_of_voxels(tmp_path, dtype):
    array = files.marked(dtype)
    scan = read_scan(
        files.write_nifti(tmp_path / "a.nii", array.view(np.uint8) if dtype == np.int8 else array, np.eye(4))
    )
    assert scan.array[(0, *files.MARK)] == 100


def test_pictures_keep_rows_columns_and_colours(tmp_path):
    """MONAI gives columns first; here rows stay rows."""
    grey = np.zeros((20, 30), np.uint8)
    grey[3, 17] = 200
    assert read_scan(files.write_picture(tmp_path / "g.png", grey)).array.shape == (1, 20, 30, 1)
    colours = np.zeros((20, 30, 3), np.uint8)
    colours[3, 17] = (1, 2, 3)
    scan = read_scan(files.write_picture(tmp_path / "c.tif", colours))
    assert scan.array.shape == (3, 20, 30, 1)
    assert list(scan.array[:, 3, 17, 0]) == [1, 2, 3]
    deep = grey.astype(np.uint16) * 200
    assert read_scan(files.write_picture(tmp_path / "d.png", deep)).array.max() == 40_000
    with pytest.raises(UserError, match="one channel"):
        read_scan(tmp_path / "c.tif", label=True)


@pytest.mark.parametrize("name", files.AFFINES)
@pytest.mark.parametrize("kind", ["nifti", "nrrd", "dicom", "picture"])
def test_labels_are_written_in_the_grid_of_their_scan(tmp_path, kind, name):
    affine, array = files.AFFINES[name], files.marked()
    if kind == "nifti":
        source = files.write_nifti(tmp_path / "a.nii.gz", array, affine)
    elif kind == "nrrd":
        source = files.write_nrrd(tmp_path / "a.nrrd", array, affine)
    elif kind == "dicom":
        affine = RIGID.get(name, files.AFFINES["ras"])
        source = files.write_series(tmp_path / "a", array, affine)
    else:
        source = files.write_picture(tmp_path / "a.png", array[:, :, 4].astype(np.uint8))
    scan = read_scan(source)
    labels = (scan.array[0] == scan.array.max()).astype(np.uint8) * 3
    path = tmp_path / "out" / name_for(source, scan)
    write_labels(path, labels, scan)
    back = read_scan(path, label=True)
    np.testing.assert_array_equal(back.array[0], labels)
    np.testing.assert_allclose(back.affine, scan.affine, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.nii.gz", b"\x1f\x8b broken", "a.nii.gz: cannot be read"),
        ("a.nrrd", b"NRRD0004\nsizes: 3", "a.nrrd: cannot be read"),
        ("a.png", b"\x89PNG....", "a.png: cannot be read"),
        ("a.dcm", b"nothing", "a.dcm"),
        ("a.xyz", b"", "no known kind"),
    ],
)
def test_a_file_that_is_none_is_named(tmp_path, name, content, said):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=said):
        read_scan(tmp_path / name)


def test_values_that_are_not_finite_are_refused(tmp_path):
    array = files.marked(np.float32)
    array[0, 0, 0] = np.nan
    with pytest.raises(UserError, match="not finite"):
        read_scan(files.write_nifti(tmp_path / "a.nii", array, np.eye(4)))
