"""From a recipe's data section to tokenized corpora: texts, tokenizer, cache and the held-out part, in one call."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from burnish.data.cache import Progress, tokenized
from burnish.data.heldout import split
from burnish.data.packing import Corpus
from burnish.data.text import Texts
from burnish.data.tokenizer import Tokenizer
from burnish.errors import UserError


class Source(Protocol):
    """What is read of a recipe's data section."""

    @property
    def train(self) -> tuple[str, ...]: ...
    @property
    def heldout(self) -> tuple[str, ...]: ...
    @property
    def heldout_fraction(self) -> float: ...
    @property
    def tokenizer(self) -> str | None: ...
    @property
    def text_field(self) -> str: ...


@dataclass(frozen=True, eq=False)
class Prepared:
    """Corpora ready to pack. `fingerprints` names what went in: train, heldout (when given), tokenizer."""

    tokenizer: Tokenizer
    train: Corpus
    heldout: Corpus | None
    fingerprints: dict[str, str]


def prepare(
    source: Source, vocab: int, eos: int | None = None, folder: Path | None = None, progress: Progress | None = None
) -> Prepared:
    """Read, tokenize (from the cache where it can) and split the data of a run for a model of `vocab` tokens.

    Without `source.tokenizer` a byte-level BPE of `vocab` tokens is trained on all of `source.train`; `eos` names the
    end-of-text id of a tokenizer that is read. Raises UserError naming the file or setting at fault.
    """
    train = Texts.open(source.train, source.text_field)
    heldout = Texts.open(source.heldout, source.text_field) if source.heldout else None
    if heldout:
        both = {path.resolve() for path in train.files} & {path.resolve() for path in heldout.files}
        if both:
            raise UserError(f"{min(both)}: is in data.train and in data.heldout; held-out text must not be trained on")
    if source.tokenizer is None:
        tokenizer = Tokenizer.train(train.documents(), vocab)
    else:
        tokenizer = Tokenizer.load(source.tokenizer, eos)
    tokenizer.check_vocab(vocab)
    corpus = tokenized(train, tokenizer, folder, progress)
    judged = tokenized(heldout, tokenizer, folder, progress) if heldout else None
    if judged is None and source.heldout_fraction > 0:
        corpus, judged = split(corpus, source.heldout_fraction, tokenizer.count_bytes)
    fingerprints = {"train": train.fingerprint, "tokenizer": tokenizer.fingerprint}
    if heldout:
        fingerprints["heldout"] = heldout.fingerprint
    return Prepared(tokenizer, corpus, judged, fingerprints)
