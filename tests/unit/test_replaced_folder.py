"""A folder is replaced by one process at a time; what a killed one left is no obstacle."""

from __future__ import annotations

from pathlib import Path

import pytest

from burnish.errors import UserError
from burnish.export.folder import replacing_folder


def test_two_at_once_do_not_mix(tmp_path: Path) -> None:
    target = tmp_path / "model"
    with replacing_folder(target, bool) as first:
        (first / "a").write_text("first")
        with pytest.raises(UserError, match="another process is writing it; wait"), replacing_folder(target, bool):
            raise AssertionError("was let in")
        (first / "b").write_text("still there")
    assert sorted(path.name for path in target.iterdir()) == ["a", "b"]
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_what_a_killed_process_left_is_replaced(tmp_path: Path) -> None:
    left = tmp_path / ".model.writing"
    left.mkdir()
    (left / "half").write_text("")
    with replacing_folder(tmp_path / "model", bool) as fresh:
        (fresh / "whole").write_text("")
    assert [path.name for path in (tmp_path / "model").iterdir()] == ["whole"]
    assert not left.exists()
