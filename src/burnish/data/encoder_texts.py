"""Texts as an encoder reads them: tokens with those that its tokenizer sets around them, cut to a length; pairs with types."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from burnish.data.tokenizer import tokenizers_library
from burnish.errors import UserError


class EncoderText(NamedTuple):
    """One text or pair: ids, and for each which of the two it is of."""

    ids: list[int]
    types: list[int]


class EncoderTokenizer:
    """A `tokenizer.json` with its own special tokens; texts longer than `limit` tokens are cut at their end."""

    def __init__(self, content: str, where: str, limit: int, lower: bool = False) -> None:
        """Raises UserError naming `where` for what is no tokenizer."""
        try:
            self._inner: Any = tokenizers_library().Tokenizer.from_str(content)
        except Exception as error:  # the library raises bare Exception
            raise UserError(f"{where}: not a tokenizer.json ({str(error).splitlines()[0]})") from None
        self._inner.no_padding()
        self._inner.enable_truncation(limit)
        self._lower = lower

    @property
    def vocab(self) -> int:
        """Rows an embedding needs: the largest id plus one."""
        return int(max(self._inner.get_vocab(with_added_tokens=True).values())) + 1

    def encode(self, texts: Sequence[str | tuple[str, str]]) -> list[EncoderText]:
        """Each text, or pair of texts, framed; of a pair that is too long the longer text is cut."""
        given = [self._cased(text) for text in texts]
        return [EncoderText(list(one.ids), list(one.type_ids)) for one in self._inner.encode_batch(given)]

    def _cased(self, text: str | tuple[str, str]) -> str | tuple[str, str]:
        if not self._lower:
            return text
        return text.lower() if isinstance(text, str) else (text[0].lower(), text[1].lower())
