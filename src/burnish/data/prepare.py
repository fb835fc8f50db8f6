"""From a recipe's data section to tokenized corpora: texts or conversations, tokenizer, cache and the held-out part, in one
call."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from burnish.data.cache import Progress, tokenized
from burnish.data.chat import Conversations
from burnish.data.chat_tokens import ChatTokenizer
from burnish.data.heldout import split
from burnish.data.packing import Corpus
from burnish.data.template import Template
from burnish.data.text import Texts
from burnish.data.tokenizer import Tokenizer
from burnish.errors import UserError
from burnish.records import write_text

if TYPE_CHECKING:
    from burnish.load.checkpoint import TokenizerFiles

CHAT = "chat"
TEMPLATE_FILE = "chat_template.jinja"  # where a model folder keeps it, if not in the tokenizer's settings


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
    @property
    def format(self) -> str: ...
    @property
    def template(self) -> str | None: ...
    @property
    def loss(self) -> str: ...


@dataclass(frozen=True, eq=False)
class Prepared:
    """Corpora ready to pack. `fingerprints` names what went in: train, heldout (when given), tokenizer, template (of a chat).

    `settings` is the `tokenizer_config.json` that the trained model goes with; None leaves it to the export.
    """

    tokenizer: Tokenizer
    train: Corpus
    heldout: Corpus | None
    fingerprints: dict[str, str]
    settings: dict[str, Any] | None = None

    def save_tokenizer(self, path: Path) -> None:
        """Write `tokenizer.json` at `path`, and its settings beside it where there are some. Raises UserError."""
        self.tokenizer.save(path)
        if self.settings is not None:
            write_text(path.with_name("tokenizer_config.json"), json.dumps(self.settings, ensure_ascii=False, indent=2))


def prepare(
    source: Source,
    vocab: int,
    eos: int | None = None,
    folder: Path | None = None,
    progress: Progress | None = None,
    files: TokenizerFiles | None = None,
) -> Prepared:
    """Read, tokenize (from the cache where it can) and split the data of a run for a model of `vocab` tokens.

    The tokenizer is `source.tokenizer`, else that of `files`, those of the model that training starts from; else a
    byte-level BPE of `vocab` tokens is trained on all of `source.train`. `eos` names the end-of-text id of one that is read.
    Raises UserError naming the file or setting at fault.
    """
    train = _opened(source, source.train)
    heldout = _opened(source, source.heldout) if source.heldout else None
    if heldout:
        both = {path.resolve() for path in train.files} & {path.resolve() for path in heldout.files}
        if both:
            raise UserError(f"{min(both)}: is in data.train and in data.heldout; held-out text must not be trained on")
    tokenizer, settings = _tokenizer(source, vocab, eos, files, train)
    tokenizer.check_vocab(vocab)
    encoder: Tokenizer | ChatTokenizer = tokenizer
    fingerprints = {"train": train.fingerprint, "tokenizer": tokenizer.fingerprint}
    if source.format == CHAT:
        template = _template(source, tokenizer, files)
        settings = dict(tokenizer.settings or {}) | {"chat_template": template.source}
        encoder = ChatTokenizer(tokenizer, template, source.loss)
        fingerprints["template"] = template.fingerprint
    corpus = tokenized(train, encoder, folder, progress)
    judged = tokenized(heldout, encoder, folder, progress) if heldout else None
    if judged is None and source.heldout_fraction > 0:
        by = "document" if source.format == CHAT else "auto"
        corpus, judged = split(corpus, source.heldout_fraction, tokenizer.count_bytes, by)
    if judged is not None and not judged.total_bytes:
        raise UserError(
            "the held-out part has no text to be judged on; give it more in data.heldout or heldout_fraction"
        )
    if heldout:
        fingerprints["heldout"] = heldout.fingerprint
    return Prepared(tokenizer, corpus, judged, fingerprints, settings)


def _opened(source: Source, names: Sequence[str]) -> Texts | Conversations:
    return Conversations.open(names) if source.format == CHAT else Texts.open(names, source.text_field)


def _tokenizer(
    source: Source, vocab: int, eos: int | None, files: TokenizerFiles | None, train: Texts | Conversations
) -> tuple[Tokenizer, dict[str, Any] | None]:
    """The tokenizer, and the settings that are exported with it."""
    if source.tokenizer is not None:
        return Tokenizer.load(source.tokenizer, eos), None
    if files is not None:
        settings = dict(files.settings) | ({"chat_template": files.template} if files.template else {})
        return Tokenizer.read(files.tokenizer, "the tokenizer of train.init", eos, settings), settings
    if isinstance(train, Conversations):
        raise UserError(
            "data.format chat: there is no tokenizer; name a model folder in train.init or in data.tokenizer"
        )
    return Tokenizer.train(train.documents(), vocab), None


def _template(source: Source, tokenizer: Tokenizer, files: TokenizerFiles | None) -> Template:
    """`data.template`, else the one that came with the tokenizer."""
    settings = tokenizer.settings or {}
    if source.template is not None:
        return Template.load(source.template, settings)
    if source.tokenizer is None:
        found, where = files.template if files else None, "the chat template of train.init"
    else:
        given = Path(source.tokenizer).expanduser()
        file = (given if given.is_dir() else given.parent) / TEMPLATE_FILE
        if file.is_file():
            return Template.load(file, settings)
        found, where = settings.get("chat_template"), f"the chat template of {source.tokenizer}"
    if not isinstance(found, str):
        raise UserError(f"{where}: there is none; name a .jinja file in data.template")
    return Template.of(found, settings, where)
