"""Fetching a model by name, and what a person is told of it: where it lies, its licence, its caveat, what to do next."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path

from burnish.errors import UserError, nearest
from burnish.load.backbones import BACKBONES, backbone
from burnish.load.hub import parse, snapshot
from burnish.load.image_sets import BRAIN, IMAGE_SETS, image_set
from burnish.load.labelled_sets import SETS, LabelledSet, labelled
from burnish.load.picture_sets import PICTURE_SETS, picture_set
from burnish.load.wheels import Progress, ShippedModel, fetched, model_named, shipped_models

WIDE, LABEL = 80, 9


def fetch(name: str, check: bool = False, progress: Progress | None = None) -> Iterator[str]:
    """Lines about a model, or labelled texts, that are then there. Raises UserError where they cannot be had, naming the
    nearest name."""
    if name in shipped_models():
        return _of_table(model_named(name), fetched(name, check=check, progress=progress))
    if name in BACKBONES:
        return _of_table(BACKBONES[name], backbone(name, check=check, progress=progress))
    if name in SETS:
        return _set(SETS[name], labelled(SETS[name]))
    if name in IMAGE_SETS or name == BRAIN:
        return _scans([name] if name in IMAGE_SETS else list(IMAGE_SETS), progress)
    if name in PICTURE_SETS:
        return _pictures(name, progress)
    if asked := parse(name):
        return _hub(name, snapshot(*asked, renew=check))
    known = [*shipped_models(), *BACKBONES, *SETS, BRAIN, *PICTURE_SETS]
    raise UserError(f"fetch {name!r}: {nearest(name, known)}; or ORG/NAME[@REVISION] of the hub")


def _of_table(about: ShippedModel, place: Path) -> Iterator[str]:
    yield from _line("model:", about.about)
    yield from _line("where:", str(place))
    yield from _line("licence:", about.licence)
    yield from _line("note:", about.caveat)
    yield from _following(about.next)


def _set(own: LabelledSet, place: Path) -> Iterator[str]:
    yield from _line("texts:", f"{own.lines:,} {own.about}")
    yield from _line("where:", str(place))
    yield from _line("licence:", own.licence)
    yield from _following((f"burnish eval minilm --task {place}",))


def _scans(names: list[str], progress: Progress | None) -> Iterator[str]:
    for name in names:
        (image, label), *_ = image_set(name, progress=progress)
        yield from _line("scans:", f"{name}: {IMAGE_SETS[name].about}")
        yield from _line("where:", f"{image.parent}: {image.name}, {label.name}")
        yield from _line("licence:", IMAGE_SETS[name].licence)
    yield from _following(("burnish run brain-extraction", "burnish run brain-regions"))


def _pictures(name: str, progress: Progress | None) -> Iterator[str]:
    own, places = PICTURE_SETS[name], picture_set(name, progress=progress)
    yield from _line("set:", own.about)
    yield from _line("where:", ", ".join(str(place) for place in places.values()))
    yield from _line("licence:", own.licence)
    yield from _following((own.next,))


def _hub(name: str, place: Path) -> Iterator[str]:
    yield from _line("model:", f"{name} of the Hugging Face hub")
    yield from _line("where:", str(place))
    yield from _line("licence:", "as its page at the hub says; read it before you use or pass on the model")
    yield from _following((f"burnish inspect {name}",))


def _following(commands: tuple[str, ...]) -> Iterator[str]:
    for number, command in enumerate(commands):
        yield f"{'next:' if not number else '':<{LABEL}}{command}"


def _line(label: str, text: str) -> list[str]:
    """A label and its text on as many lines as it takes; a path stays in one piece, so that it can be copied."""
    lines = textwrap.wrap(text, WIDE - LABEL, break_long_words=False, break_on_hyphens=False)
    return [f"{label if not number else '':<{LABEL}}{line}" for number, line in enumerate(lines)]
