"""Scans out of packages: a Debian package is read without dpkg, and any file but the known one is refused and not kept."""

import hashlib
import io
import tarfile

import pytest

from burnish.errors import UserError
from burnish.load import debian_package, fetch_text, image_sets
from burnish.load.image_sets import ImageSet, Package
from burnish.load.wheels import InnerFile

CONTENT = {"usr/share/a/scan.nii.gz": b"scan" * 99, "usr/share/a/label.nii.gz": b"label"}


def member(name, content):
    head = f"{name:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(content):<10}`\n".encode()
    return head + content + b"\n" * (len(content) % 2)


def package(content=CONTENT):
    """A .deb as dpkg-deb makes it."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:xz") as archive:
        for name, data in content.items():
            info = tarfile.TarInfo(f"./{name}")
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    parts = (("debian-binary", b"2.0\n"), ("control.tar.xz", b"odd"), ("data.tar.xz", stream.getvalue()))
    return b"!<arch>\n" + b"".join(member(name, data) for name, data in parts)


@pytest.fixture
def made(tmp_path, monkeypatch):
    """A set of a package that a user has put into the cache's downloads; apt is not there."""
    content = package()
    files = {
        name.rsplit("/", 1)[1]: InnerFile(name, len(data), hashlib.sha256(data).hexdigest())
        for name, data in CONTENT.items()
    }
    own = Package("debian", "heads", "1.0", hashlib.sha256(content).hexdigest(), len(content), files)
    one = ImageSet("heads", own, (("scan.nii.gz", "label.nii.gz"),), "two files", "none")
    monkeypatch.setitem(image_sets.IMAGE_SETS, "heads", one)
    monkeypatch.setattr(debian_package.shutil, "which", lambda name: None)
    monkeypatch.setenv("BURNISH_CACHE", str(tmp_path))
    (tmp_path / "downloads").mkdir()
    return tmp_path, content


def test_a_package_that_lies_there_is_unpacked_once(made):
    cache, content = made
    (cache / "downloads" / "heads_1.0_all.deb").write_bytes(content)
    ((image, label),) = image_sets.image_set("heads")
    assert (image.read_bytes(), label.read_bytes()) == tuple(CONTENT.values())
    (cache / "downloads" / "heads_1.0_all.deb").unlink()
    assert image_sets.image_set("heads") == ((image, label),)
    assert any("two files" in line for line in fetch_text.fetch("heads"))


def test_another_file_is_not_taken(made):
    cache, content = made
    (cache / "downloads" / "heads_1.0_all.deb").write_bytes(content + b" ")
    with pytest.raises(UserError, match=r"apt-get is not there .*downloads"):
        image_sets.image_set("heads")
    assert not list((cache / "sets").iterdir())


@pytest.mark.parametrize(
    "content", [b"", b"!<arch>\n", b"!<arch>\n" + member("data.tar.xz", b"odd"), package({"x": b""})]
)
def test_a_damaged_package_is_refused(tmp_path, content):
    (tmp_path / "a.deb").write_bytes(content)
    with pytest.raises(UserError, match=r"a\.deb: "):
        debian_package.unpack(tmp_path / "a.deb", {"scan": "usr/share/a/scan.nii.gz"})


def test_a_content_that_is_not_the_known_one_leaves_nothing(made, monkeypatch):
    cache, content = made
    (cache / "downloads" / "heads_1.0_all.deb").write_bytes(content)
    files = image_sets.IMAGE_SETS["heads"].package.files
    monkeypatch.setitem(files, "label.nii.gz", InnerFile("usr/share/a/label.nii.gz", 5, "0" * 64))
    with pytest.raises(UserError, match="not the file that is known"):
        image_sets.image_set("heads")
    assert not list((cache / "sets").iterdir())


def test_an_unknown_name_is_told_the_nearest():
    with pytest.raises(UserError, match="brain"):
        list(fetch_text.fetch("brian"))
