"""The tokenizer in a GGUF file as Hugging Face's files: tokenizer.json, the settings beside it, and the chat template."""

from __future__ import annotations

import json
from typing import Any

from burnish.errors import MissingExtra, UserError, nearest
from burnish.gguf_files.header import Header
from burnish.gguf_files.settings import token_id
from burnish.load.checkpoint import TokenizerFiles
from burnish.tables.gguf_tokenizers import (
    BYTE,
    BYTES,
    CONTROL,
    CUTS,
    DIGIT,
    GPT2,
    KINDS,
    NORMAL,
    PADDING,
    PIECES,
    UNKNOWN,
    UNUSED,
    USER,
    WITHOUT,
    Cut,
)

_KEY = "tokenizer.ggml."
_SPACE = "\u2581"  # what SentencePiece writes for a blank
_LONGEST = 256  # characters of a piece; more would take long to look for pairs in
_WORDS = {"bos": "bos", "eos": "eos", "unknown": "unk", "padding": "pad", "seperator": "sep", "mask": "mask"}


def read_tokenizer(header: Header, vocab: int, positions: int | None) -> TokenizerFiles | None:
    """The tokenizer, None where the file has none. `vocab`: rows of the embedding, `positions`: the longest text.

    Raises UserError naming the key, for a kind of tokenizer that is not read too.
    """
    kind = header.metadata.get(_KEY + "model")
    template = _text(header, "tokenizer.chat_template")
    if kind is None or kind in WITHOUT:
        return None
    if kind not in (BYTES, PIECES):
        raise header.refuse(f"{_KEY}model is {str(kind)[:40]!r}; {BYTES} and {PIECES} are read")
    texts = _list(header, "tokens", str)
    if not 0 < len(texts) <= vocab:
        raise header.refuse(f"{_KEY}tokens has {len(texts)} tokens, token_embd.weight {vocab} rows")
    kinds = (
        _list(header, "token_type", int, len(texts))
        if _KEY + "token_type" in header.metadata
        else [NORMAL] * len(texts)
    )
    if odd := set(kinds) - set(KINDS):
        raise header.refuse(f"{_KEY}token_type has {min(odd)}; {KINDS[0]} to {KINDS[-1]} are known")
    cut = _cut(header) if kind == BYTES else None
    tokens = {
        text: number for number, text in enumerate(texts) if kinds[number] != UNUSED or text != PADDING.format(number)
    }
    if len(tokens) < len(texts) - kinds.count(UNUSED):
        twice = next(text for number, text in enumerate(texts) if tokens.get(text, number) != number)
        raise header.refuse(f"{_KEY}tokens has {twice[:40]!r} twice")
    special = _special(header, vocab, texts)
    content = _content(texts, kinds)
    if cut is not None:
        content |= _byte_level(header, tokens, cut)
    else:
        content |= _pieces(header, tokens, texts, kinds, special)
    content["post_processor"] = _frame(header, texts, cut is None or cut.beginning, vocab)
    settings: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **{f"{name}_token": text for name, text in special.items()},
        "clean_up_tokenization_spaces": False,
    }
    for flag in ("add_bos_token", "add_eos_token"):
        if isinstance(said := header.metadata.get(_KEY + flag), bool):
            settings[flag] = said
    if positions is not None:
        settings["model_max_length"] = positions
    return TokenizerFiles(_checked(header, content), settings, template)


def _content(texts: list[str], kinds: list[int]) -> dict[str, Any]:
    """tokenizer.json, up to what depends on the kind of tokenizer."""
    added = [
        {"id": number, "content": texts[number], "special": kinds[number] != USER}
        | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        for number in range(len(texts))
        if kinds[number] in (UNKNOWN, CONTROL, USER)
    ]
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added}


def _model(tokens: dict[str, int], merges: list[list[str]], **own: Any) -> dict[str, Any]:
    plain: dict[str, Any] = dict.fromkeys(("dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix"))
    flags = dict.fromkeys(("fuse_unk", "byte_fallback", "ignore_merges"), False)
    return {"type": "BPE", **plain, **flags, **own, "vocab": tokens, "merges": merges}


def _byte_level(header: Header, tokens: dict[str, int], cut: Cut) -> dict[str, Any]:
    merges = []
    for number, line in enumerate(_list(header, "merges", str)):
        blank = line.find(" ", 1)
        if blank < 1 or blank == len(line) - 1:
            raise header.refuse(
                f"{_KEY}merges has {line[:40]!r} at {number}; two tokens with a blank between are needed"
            )
        pair = [line[:blank], line[blank + 1 :]]
        for token in (*pair, "".join(pair)):
            if token not in tokens:
                raise header.refuse(f"{_KEY}merges has {line[:40]!r} at {number}, but {token[:40]!r} is no token")
        merges.append(pair)
    return {
        "normalizer": {"type": "NFC"} if cut.composed else None,
        "pre_tokenizer": pre_tokenizer(cut),
        "decoder": _level(True, True),
        "model": _model(tokens, merges, ignore_merges=cut.whole),
    }


def pre_tokenizer(cut: Cut) -> dict[str, Any]:
    """What tokenizer.json has for a way of cutting text; the last cut of GPT-2's kind is the library's own."""
    own = cut.patterns[-1] == GPT2
    steps: list[dict[str, Any]] = [
        {"type": "Digits", "individual_digits": True}
        if pattern == DIGIT
        else {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
        for pattern in cut.patterns[: -1 if own else None]
    ]
    steps.append(_level(False, own))
    return steps[0] if len(steps) == 1 else {"type": "Sequence", "pretokenizers": steps}


def _level(prefix: bool, cuts: bool) -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True, "use_regex": cuts}


def _pieces(
    header: Header, tokens: dict[str, int], texts: list[str], kinds: list[int], special: dict[str, str]
) -> dict[str, Any]:
    scores = _list(header, "scores", float, len(texts))
    if header.metadata.get(_KEY + "precompiled_charsmap"):
        raise header.refuse(f"{_KEY}precompiled_charsmap changes text before it is cut, which is not read")
    normal = {text: scores[number] for text, number in tokens.items() if kinds[number] in (NORMAL, UNUSED)}
    if long := [text for text in normal if len(text) > _LONGEST]:
        raise header.refuse(f"{_KEY}tokens has a piece of {len(long[0])} characters; up to {_LONGEST} are read")
    blanks = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}
    before = [{"type": "Prepend", "prepend": _SPACE}] if _flag(header, "add_space_prefix", True) else []
    after = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if before else []
    back = {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "}
    steps = [back, {"type": "ByteFallback"}, {"type": "Fuse"}, *after]
    fallback = BYTE in kinds
    unknown = special.get("unk") or next((text for text, n in tokens.items() if kinds[n] == UNKNOWN), None)
    return {
        "normalizer": {"type": "Sequence", "normalizers": [*before, blanks]},
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": steps},
        "model": _model(tokens, pairs(normal), fuse_unk=True, byte_fallback=fallback, unk_token=unknown),
    }


def pairs(scores: dict[str, float]) -> list[list[str]]:
    """Merges that choose as SentencePiece does: it always joins the two neighbours whose piece has the best score.

    Every way to make a piece of two others is a merge, those of a better piece first; of one piece, longer left parts
    first, as transformers orders them.
    """
    found = []
    for piece, score in scores.items():
        for middle in range(1, len(piece)):
            left, right = piece[:middle], piece[middle:]
            if left in scores and right in scores:
                found.append((-score, -len(left), -len(right), left, right))
    return [[left, right] for *_, left, right in sorted(found)]


def _cut(header: Header) -> Cut:
    name = header.metadata.get(_KEY + "pre", "default")
    for cut in CUTS:
        if name in cut.names:
            return cut
    raise header.refuse(
        f"{_KEY}pre is {str(name)[:40]!r}; {nearest(str(name)[:40], (n for c in CUTS for n in c.names))}"
    )


def _special(header: Header, vocab: int, texts: list[str]) -> dict[str, str]:
    """bos, eos, unk, pad ... with the text of each that the file names."""
    numbers = {name: token_id(header, word, vocab) for word, name in _WORDS.items()}
    return {name: texts[number] for name, number in numbers.items() if number is not None and number < len(texts)}


def _frame(header: Header, texts: list[str], beginning: bool, vocab: int) -> dict[str, Any] | None:
    """A post-processor that sets bos before a text and eos after it, where the file says so."""
    wanted = [("bos", _flag(header, "add_bos_token", beginning)), ("eos", _flag(header, "add_eos_token", False))]
    numbers = {word: token_id(header, word, vocab) for word, asked in wanted if asked}
    known = {word: number for word, number in numbers.items() if number is not None and number < len(texts)}
    if not known:
        return None

    def framed(name: str, kind: int) -> list[dict[str, Any]]:
        marks = [{"SpecialToken": {"id": texts[number], "type_id": kind}} for number in known.values()]
        first = marks[:1] if "bos" in known else []
        return [*first, {"Sequence": {"id": name, "type_id": kind}}, *marks[len(first) :]]

    one = framed("A", 0)
    special = {texts[n]: {"id": texts[n], "ids": [n], "tokens": [texts[n]]} for n in known.values()}
    return {"type": "TemplateProcessing", "single": one, "pair": one + framed("B", 1), "special_tokens": special}


def _flag(header: Header, name: str, otherwise: bool) -> bool:
    value = header.metadata.get(_KEY + name, otherwise)
    if not isinstance(value, bool):
        raise header.refuse(f"{_KEY}{name} is {str(value)[:40]}; true or false is needed")
    return value


def _text(header: Header, key: str) -> str | None:
    value = header.metadata.get(key)
    if value is not None and not isinstance(value, str):
        raise header.refuse(f"{key} is no text")
    return value


def _list(header: Header, name: str, kind: type, length: int | None = None) -> list[Any]:
    value = header.metadata.get(_KEY + name)
    if value is None:
        raise header.refuse(f"{_KEY}{name} is missing")
    if not isinstance(value, list) or not all(type(item) is kind for item in value):
        raise header.refuse(f"{_KEY}{name} is no list of {kind.__name__}")
    if length is not None and len(value) != length:
        raise header.refuse(f"{_KEY}{name} has {len(value)} entries, {_KEY}tokens {length}")
    return value


def _checked(header: Header, content: dict[str, Any]) -> str:
    """The content as the tokenizers library writes it, which refuses what does not fit together."""
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise MissingExtra("reading a tokenizer", "train", "tokenizers") from None
    try:
        return str(Tokenizer.from_str(json.dumps(content, ensure_ascii=False)).to_str())
    except UserError:
        raise
    except Exception as error:  # the library raises bare Exception
        raise header.refuse(f"the tokenizer does not fit together ({str(error).splitlines()[0][:120]})") from None
