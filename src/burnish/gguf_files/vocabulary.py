"""The metadata that tell llama.cpp a tokenizer: tokens, kinds, merges or scores, special tokens, chat template."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from burnish.errors import UserError
from burnish.gguf_files.settings import IDS, Field
from burnish.tables.gguf_tokenizers import (
    BYTE,
    BYTES,
    CONTROL,
    CUTS,
    DIGIT,
    GPT2,
    NORMAL,
    PADDING,
    PIECES,
    UNKNOWN,
    UNUSED,
    USER,
    Cut,
)

if TYPE_CHECKING:
    from burnish.load.checkpoint import TokenizerFiles

_KEY = "tokenizer.ggml."
_SPACE = "\u2581"
_BYTE = re.compile("<0x[0-9A-F]{2}>")


def write_vocabulary(tokenizer: TokenizerFiles, config: Mapping[str, Any], where: str) -> list[Field]:
    """Fields of the metadata. Rows of the model without a token become unused tokens.

    Raises UserError for a tokenizer that llama.cpp has no name for, and for one that does not fit `config`.
    """
    where = f"{where}: tokenizer.json"
    content = _content(tokenizer.tokenizer, where)
    model = content["model"]
    tokens, added = _tokens(content, config["vocab_size"], where)
    level = "ByteLevel" in [step.get("type") for step in _steps(content.get("pre_tokenizer"), "pretokenizers")]
    fallback = bool(model.get("byte_fallback"))
    if level:
        cut = _cut(content, where)
        written: list[Field] = [(_KEY + "model", "string", BYTES), (_KEY + "pre", "string", cut.names[0])]
        lines = [" ".join(pair) for pair in _merges(model, where)]
        own: list[Field] = [(_KEY + "merges", "[string]", lines)]
    else:
        prefix = _space_prefix(content, where)
        written = [(_KEY + "model", "string", PIECES), (_KEY + "pre", "string", "default")]
        own = [(_KEY + "scores", "[f32]", _scores(tokens, _merges(model, where)))]
        own.append((_KEY + "add_space_prefix", "bool", prefix))
    unknown = None if level else model.get("unk_token")
    kinds = [_kind(text, number, added, unknown, fallback) for number, text in enumerate(tokens)]
    texts = [PADDING.format(number) if text is None else text for number, text in enumerate(tokens)]
    written += [(_KEY + "tokens", "[string]", texts), (_KEY + "token_type", "[i32]", kinds), *own]
    written += _special(tokenizer.settings, content, config, texts, where)
    template = tokenizer.template or tokenizer.settings.get("chat_template")
    return written + ([("tokenizer.chat_template", "string", template)] if isinstance(template, str) else [])


def _content(text: str, where: str) -> dict[str, Any]:
    try:
        content = json.loads(text)
        kind = content["model"].get("type", "BPE")
        good = isinstance(content["model"]["vocab"], dict | list)
    except (ValueError, KeyError, TypeError, AttributeError):
        good, kind = False, None
    if not good:
        raise UserError(f"{where} is not one (JSON with model.vocab)")
    if kind != "BPE":
        raise UserError(f"{where} is of the type {kind!r}; GGUF files are written with those of the type BPE")
    return dict(content)


def _tokens(content: Mapping[str, Any], rows: int, where: str) -> tuple[list[str | None], dict[int, bool]]:
    """Text by id, None where there is none, and which added tokens are special."""
    vocab = {int(number): str(text) for text, number in content["model"]["vocab"].items()}
    listed = content.get("added_tokens") or []
    vocab |= {int(token["id"]): str(token["content"]) for token in listed}
    size = max(vocab, default=-1) + 1
    if not 0 < size <= rows:
        raise UserError(f"{where} has {size} tokens, the model {rows}; vocab_size must be {max(size, 1)} or more")
    return [vocab.get(number) for number in range(rows)], {int(t["id"]): bool(t.get("special")) for t in listed}


def _kind(text: str | None, number: int, added: Mapping[int, bool], unknown: str | None, fallback: bool) -> int:
    if text is None:
        return UNUSED
    if text == unknown:
        return UNKNOWN
    if number in added:
        return CONTROL if added[number] else USER
    return BYTE if fallback and _BYTE.fullmatch(text) else NORMAL


def _steps(step: Mapping[str, Any] | None, within: str) -> list[Mapping[str, Any]]:
    if step is None:
        return []
    return list(step[within]) if step.get("type") == "Sequence" else [step]


def _cut(content: Mapping[str, Any], where: str) -> Cut:
    patterns: list[str | None] = []
    for step in _steps(content["pre_tokenizer"], "pretokenizers"):
        if step["type"] == "ByteLevel":
            patterns += [GPT2] if step.get("use_regex", True) else []
            patterns += [None] if step.get("add_prefix_space", True) else []
        elif step["type"] == "Digits" and step.get("individual_digits"):
            patterns.append(DIGIT)
        elif step["type"] == "Split" and step.get("behavior") == "Isolated" and not step.get("invert"):
            patterns.append(step["pattern"].get("Regex"))
        else:
            patterns.append(None)
    known = ", ".join(cut.names[0] for cut in CUTS)
    for cut in CUTS:
        if tuple(patterns) == cut.patterns:
            break
    else:
        raise UserError(f"{where} cuts text in a way that llama.cpp has no name for here; named are {known}")
    normalizer = [step.get("type") for step in _steps(content.get("normalizer"), "normalizers")]
    if normalizer not in ([], ["NFC"]) or bool(normalizer) != cut.composed:
        meant = "the normalizer NFC" if cut.composed else "no normalizer"
        raise UserError(
            f"{where} has the normalizer {normalizer[:3]}; its way to cut text, {cut.names[0]}, has {meant}"
        )
    return cut


def _space_prefix(content: Mapping[str, Any], where: str) -> bool:
    """Whether a blank is set before a text. Raises UserError for what is no SentencePiece way to treat blanks."""
    changes = _steps(content.get("normalizer"), "normalizers")
    splits = _steps(content.get("pre_tokenizer"), "pretokenizers")
    kinds = [step.get("type") for step in (*changes, *splits)]
    if kinds in (["Prepend", "Replace"], ["Replace"]) and changes[-1].get("content") == _SPACE:
        return len(kinds) > 1
    if kinds == ["Metaspace"] and splits[0].get("replacement") == _SPACE and not splits[0].get("split", False):
        return splits[0].get("prepend_scheme", "always") != "never"
    raise UserError(
        f"{where} treats text by {', '.join(map(str, kinds)) or 'nothing'}; llama.cpp reads byte-level tokenizers, and those "
        f"of SentencePiece, where blanks become {_SPACE}"
    )


def _merges(model: Mapping[str, Any], where: str) -> list[list[str]]:
    merges = [pair.split(" ") if isinstance(pair, str) else list(pair) for pair in model.get("merges") or []]
    for number, pair in enumerate(merges):
        if len(pair) != 2 or any(" " in token or not token for token in pair):
            raise UserError(
                f"{where} has the merge {' '.join(pair)[:40]!r} at {number}; two tokens without blanks work"
            )
    if not merges:
        raise UserError(f"{where} has no merges; llama.cpp needs some")
    return merges


def _scores(tokens: list[str | None], merges: list[list[str]]) -> list[float]:
    """Scores that choose pieces in the order of the merges: less and less, and least for what no merge makes."""
    made: dict[str, float] = {}
    for left, right in merges:
        made.setdefault(left + right, -float(len(made)))
    return [made.get(text, -float(len(made))) if text is not None else 0.0 for text in tokens]


def _special(
    settings: Mapping[str, Any], content: Mapping[str, Any], config: Mapping[str, Any], texts: list[str], where: str
) -> list[Field]:
    """Ids of special tokens, and whether bos and eos are set around a text: as the files say, not as llama.cpp guesses."""
    numbers = {text: number for number, text in enumerate(texts)}
    before, after = _around(content.get("post_processor"), where)
    found: dict[str, int] = {}
    for word, key in (*IDS.items(), ("unknown", "unk_token_id")):
        named = settings.get(key.removesuffix("_id"))
        named = named.get("content") if isinstance(named, dict) else named
        number = config.get(key)
        if isinstance(number, list):
            number = numbers[named] if named in numbers and numbers[named] in number else number[0] if number else None
        number = numbers.get(str(named)) if number is None else number
        if number is not None:
            if type(number) is not int or not 0 <= number < len(texts):
                raise UserError(f"{where}: {key} is {str(number)[:40]}, outside the tokens 0 to {len(texts) - 1}")
            found[word] = number
    for word, tokens in (("bos", before), ("eos", after)):
        if len(tokens) > 1 or any(token not in numbers for token in tokens):
            raise UserError(f"{where} sets {' '.join(tokens)[:60]!r} around a text; llama.cpp sets one {word} or none")
        found.update((word, numbers[token]) for token in tokens)
    ids: list[Field] = [(f"{_KEY}{word}_token_id", "u32", number) for word, number in found.items()]
    flags: list[Field] = [(f"{_KEY}add_bos_token", "bool", bool(before)), (f"{_KEY}add_eos_token", "bool", bool(after))]
    return ids + flags


def _around(processor: Mapping[str, Any] | None, where: str) -> tuple[list[str], list[str]]:
    """Tokens that the post-processor sets before and after a text."""
    before: list[str] = []
    after: list[str] = []
    for step in _steps(processor, "processors"):
        if step["type"] == "ByteLevel":
            continue  # changes offsets only
        if step["type"] != "TemplateProcessing":
            raise UserError(f"{where} has the post-processor {step['type']}; llama.cpp sets bos and eos, or nothing")
        reached = False
        for part in step["single"]:
            if "Sequence" in part:
                reached = True
            else:
                (after if reached else before).append(part["SpecialToken"]["id"])
    return before, after
