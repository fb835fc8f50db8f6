"""Tokenizer: a byte-level BPE trained on the user's text, or one read from a `tokenizer.json`.

Byte pair encoding: Sennrich et al. 2016, "Neural Machine Translation of Rare Words with Subword Units"; over bytes,
so that any text has tokens: Radford et al. 2019 (GPT-2, section 2.2).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from burnish.data.batch import Ids
from burnish.errors import MissingExtra, UserError
from burnish.records import write_text

END_OF_TEXT = "<|endoftext|>"
# What published tokenizers call the token that ends a document, most specific first.
_ENDS = (END_OF_TEXT, "<|end_of_text|>", "</s>", "<eos>")
_BATCH_CHARACTERS = 4_000_000  # bounds what one parallel call holds in memory


class Framed(NamedTuple):
    """A document as a model sees it: tokens, UTF-8 bytes that the learned ones spell, and which are learned.

    The first token is never learned, having none before it; without a mask all the others are.
    """

    ids: Ids
    size: int
    learned: NDArray[np.bool_] | None = None


class Tokenizer:
    """Text to ids and back. `eos` frames documents; text that spells a special token is encoded as plain text.

    Prompts alone are read as the files say: with the tokens that these add, and special tokens as such unless `plain`.
    `settings` is the content of the `tokenizer_config.json` that it came with; without one no text is special.
    """

    def __init__(
        self, inner: Any, where: str, eos: int | None = None, settings: Mapping[str, Any] | None = None
    ) -> None:
        self._inner = inner
        self._inner.no_padding()
        self._inner.no_truncation()
        self._json: str = inner.to_str()
        self._inner.encode_special_tokens = True
        self.where = where
        self.settings = settings
        self.plain = settings is None or bool(settings.get("split_special_tokens", False))
        self.eos = _end_of_text(inner, where) if eos is None else eos
        if not 0 <= self.eos < self.vocab:
            raise UserError(f"{where}: model.eos {eos} is outside its tokens 0..{self.vocab - 1}")

    @classmethod
    def train(cls, documents: Iterable[str], vocab: int) -> Tokenizer:
        """Learn a byte-level BPE; the same documents give the same file. END_OF_TEXT is id 0.

        The result has `vocab` tokens, or fewer when the text has no more pairs to merge. Raises UserError when vocab
        cannot hold the bytes and END_OF_TEXT.
        """
        tokenizers = tokenizers_library()
        alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
        if vocab <= len(alphabet):
            least = len(alphabet) + 1
            raise UserError(f"model.vocab {vocab} is too small for a byte-level tokenizer; {least} and more work")
        inner = tokenizers.Tokenizer(tokenizers.models.BPE())
        inner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        inner.decoder = tokenizers.decoders.ByteLevel()
        trainer = tokenizers.trainers.BpeTrainer(
            vocab_size=vocab, special_tokens=[END_OF_TEXT], initial_alphabet=alphabet, show_progress=False
        )
        inner.train_from_iterator(documents, trainer)
        return cls(inner, "the tokenizer trained on data.train")

    @classmethod
    def load(cls, path: str | Path, eos: int | None = None) -> Tokenizer:
        """Read a `tokenizer.json`, or the one in a folder. Raises UserError naming the file when it is not one.

        `eos` overrides the end-of-text token found by its usual names.
        """
        file = Path(path).expanduser()
        file = file / "tokenizer.json" if file.is_dir() else file
        try:
            content = file.read_text(encoding="utf-8")
        except FileNotFoundError:
            raise UserError(f"{file}: no such tokenizer file") from None
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"{file}: not a tokenizer.json ({error})") from None
        return cls.read(content, str(file), eos, _settings(file.with_name("tokenizer_config.json")))

    @classmethod
    def read(
        cls, content: str, where: str, eos: int | None = None, settings: Mapping[str, Any] | None = None
    ) -> Tokenizer:
        """One from the content of a `tokenizer.json`. Raises UserError naming `where` when it is not one."""
        try:
            inner = tokenizers_library().Tokenizer.from_str(content)
        except Exception as error:  # the library raises bare Exception
            raise UserError(f"{where}: not a tokenizer.json ({str(error).splitlines()[0]})") from None
        return cls(inner, where, eos, settings)

    def to_json(self) -> str:
        """The content of `tokenizer.json`."""
        return self._json

    def save(self, path: str | Path) -> None:
        """Write `tokenizer.json`, all of it or nothing. Raises UserError when the folder cannot be written."""
        write_text(Path(path), self._json)

    @property
    def fingerprint(self) -> str:
        """sha256 (hex) of the tokenizer and of which token ends a document."""
        return hashlib.sha256(f"{self.eos}\n{self._json}".encode()).hexdigest()

    @property
    def vocab(self) -> int:
        """Rows an embedding needs: the largest id plus one."""
        return int(max(self._inner.get_vocab(with_added_tokens=True).values())) + 1

    def check_vocab(self, vocab: int) -> None:
        """Raise UserError when a model of `vocab` embeddings lacks one for some token; spare embeddings are fine."""
        if self.vocab > vocab:
            raise UserError(
                f"{self.where} has {self.vocab} tokens, model.vocab is {vocab}; set model.vocab to {self.vocab} or more"
            )

    def encode(self, text: str) -> list[int]:
        """Ids of one text, without special tokens."""
        return list(self._inner.encode(text, add_special_tokens=False).ids)

    def encode_prompt(self, text: str) -> list[int]:
        """Ids of a text to continue, with what the tokenizer's own files add to it: as transformers encodes it."""
        return list(self._prompts.encode(text).ids)

    @cached_property
    def _prompts(self) -> Any:
        inner = tokenizers_library().Tokenizer.from_str(self._json)
        inner.encode_special_tokens = self.plain
        return inner

    def encode_documents(self, documents: Iterable[str]) -> Iterator[tuple[Ids, int]]:
        """Ids (without eos) and UTF-8 bytes of each document, encoded in parallel batches of bounded size."""
        for batch in _batches(documents):
            encoded = self._inner.encode_batch_fast(batch, add_special_tokens=False)
            for text, one in zip(batch, encoded, strict=True):
                yield np.array(one.ids, dtype=np.int64), len(text.encode())

    def framed(self, documents: Iterable[str]) -> Iterator[Framed]:
        """Each document between two eos."""
        for ids, size in self.encode_documents(documents):
            yield Framed(np.concatenate([[self.eos], ids, [self.eos]]), size)

    @cached_property
    def special_tokens(self) -> dict[str, int]:
        """The special tokens as they are spelled, with their ids."""
        return {added["content"]: int(added["id"]) for added in self._content["added_tokens"] if added["special"]}

    def with_stand_ins(self, stand_ins: Mapping[str, str]) -> Any:
        """The library's tokenizer, for which no text is special, but each value of `stand_ins` is a token of its own.

        It splits text as the special token that is the key does. Offsets of tokens are those of all their characters.
        """
        library = tokenizers_library()
        inner = library.Tokenizer.from_str(json.dumps(self._content | {"post_processor": None}))
        inner.encode_special_tokens = True
        flags = ("single_word", "lstrip", "rstrip")
        added = [one for one in self._content["added_tokens"] if one["special"]]
        inner.add_tokens(
            [
                library.AddedToken(stand_ins[one["content"]], normalized=False, **{flag: one[flag] for flag in flags})
                for one in added
            ]
        )
        return inner

    def decode(self, ids: Iterable[int]) -> str:
        """Text of the ids; special tokens are left out."""
        return str(self._inner.decode([int(i) for i in ids], skip_special_tokens=True))

    def count_bytes(self, ids: Sequence[int] | Ids) -> int:
        """UTF-8 bytes the ids spell, specials counted as none; exact even where a cut splits a character.

        For a tokenizer that is not byte-level, the length of the decoded text.
        """
        if self._lengths is None:
            return len(self.decode(ids).encode())
        return int(self._lengths[np.asarray(ids, dtype=np.int64)].sum())

    @cached_property
    def _content(self) -> dict[str, Any]:
        content: dict[str, Any] = json.loads(self._json)
        return content

    @cached_property
    def _lengths(self) -> Ids | None:
        """UTF-8 bytes of each token of a byte-level tokenizer."""
        if (self._content.get("decoder") or {}).get("type") != "ByteLevel":
            return None
        lengths = np.zeros(self.vocab, dtype=np.int64)
        for token, number in self._inner.get_vocab(with_added_tokens=False).items():
            lengths[number] = len(token)  # one letter of the byte alphabet a byte
        for added in self._content["added_tokens"]:
            lengths[added["id"]] = 0 if added["special"] else len(added["content"].encode())
        return lengths


def tokenizers_library() -> Any:
    """The tokenizers package. Raises MissingExtra where it is not installed."""
    try:
        import tokenizers
        import tokenizers.decoders
        import tokenizers.models
        import tokenizers.pre_tokenizers
        import tokenizers.trainers
    except ImportError:
        raise MissingExtra("tokenizing text", "train", "tokenizers") from None
    return tokenizers


def _settings(config: Path) -> dict[str, Any] | None:
    """The settings beside a tokenizer; None where there are none."""
    try:
        content = json.loads(config.read_text(encoding="utf-8"))
        return {**content}
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:
        raise UserError(f"{config}: not readable as JSON settings ({error})") from None


def _end_of_text(inner: Any, where: str) -> int:
    for name in _ENDS:
        if (found := inner.token_to_id(name)) is not None:
            return int(found)
    raise UserError(
        f"{where}: has none of the end-of-text tokens {', '.join(_ENDS)}; set model.eos to the id of its own"
    )


def _batches(documents: Iterable[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    held = 0
    for text in documents:
        batch.append(text)
        held += len(text) + 1
        if held >= _BATCH_CHARACTERS:
            yield batch
            batch, held = [], 0
    if batch:
        yield batch
