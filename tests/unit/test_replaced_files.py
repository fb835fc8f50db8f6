"""A file that is written replaces regular files only; links lead to what they name, and nothing else is touched."""

import os
import stat
from pathlib import Path

import pytest

from burnish.errors import UserError
from burnish.records import replaced, write_text


def test_a_link_leads_to_its_file_and_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    target, link = tmp_path / "there" / "page.html", tmp_path / "link.html"
    target.write_text("old")
    link.symlink_to(target)
    write_text(link, "new")
    assert link.is_symlink()
    assert (target.read_text(), link.read_text()) == ("new", "new")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["link.html", "page.html", "there"]


def test_a_link_to_nothing_makes_what_it_names(tmp_path: Path) -> None:
    link = tmp_path / "link.html"
    link.symlink_to(tmp_path / "new.html")
    write_text(link, "new", folders=False)
    assert link.is_symlink()
    assert (tmp_path / "new.html").read_text() == "new"


def test_a_pipe_is_left_as_it_is(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(UserError, match="no regular file"):
        write_text(pipe, "new")
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    (tmp_path / "link").symlink_to(pipe)
    with pytest.raises(UserError, match="no regular file"):
        write_text(tmp_path / "link", "new")
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_file_that_is_read_only_stays(tmp_path: Path) -> None:
    kept = tmp_path / "kept.html"
    kept.write_text("old")
    kept.chmod(0o444)
    with pytest.raises(UserError, match="read-only"):
        write_text(kept, "new")
    assert kept.read_text() == "old"


def test_permissions_stay(tmp_path: Path) -> None:
    own = tmp_path / "own.html"
    own.write_text("old")
    own.chmod(0o640)
    write_text(own, "new")
    assert (stat.S_IMODE(own.stat().st_mode), own.read_text()) == (0o640, "new")


def test_folders_are_made_only_where_that_is_wanted(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="make it first"):
        write_text(tmp_path / "no" / "page.html", "new", folders=False)
    assert not list(tmp_path.iterdir())
    write_text(tmp_path / "yes" / "page.html", "new")
    assert (tmp_path / "yes" / "page.html").read_text() == "new"


@pytest.mark.parametrize("name", ["", "."])
def test_a_folder_is_no_file(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="is a folder"):
        replaced(Path(name))


def test_an_open_stream_is_not_replaced(tmp_path: Path) -> None:
    own = tmp_path / "own"
    with own.open("w") as file, pytest.raises(UserError, match="no regular file"):
        replaced(Path(f"/proc/self/fd/{file.fileno()}"))
