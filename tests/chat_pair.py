"""Chat templates of published models, each with a small tokenizer that knows its special tokens: ours, and transformers'."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as Library
from transformers import PreTrainedTokenizerFast

from burnish.data.chat_tokens import ChatTokenizer
from burnish.data.template import Template
from burnish.data.tokenizer import Tokenizer

TEMPLATES = Path(__file__).parent / "fixtures" / "templates"
TEXT = ["It is a truth universally acknowledged, that she said: how do you do?\n\nI am very well.\n\n\n" * 8]
CHATML = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
# What each template's tokenizer has: the kind of its text, its named tokens, more special tokens.
KNOWN: dict[str, tuple[str, dict[str, str], tuple[str, ...]]] = {
    "smollm2": ("bytes", CHATML, ("<|endoftext|>",)),
    "chatml": ("bytes", CHATML, ()),
    "chatml_tagged": ("bytes", CHATML, ()),
    "qwen2.5": ("bytes", {"eos_token": "<|im_end|>"}, ("<|im_start|>", "<|endoftext|>")),
    "qwen3": ("bytes", {"eos_token": "<|im_end|>"}, ("<|im_start|>", "<|endoftext|>")),
    "llama3": (
        "bytes",
        {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"},
        ("<|start_header_id|>", "<|end_header_id|>"),
    ),
    "zephyr": ("words", {"bos_token": "<s>", "eos_token": "</s>"}, ()),
    "mistral_v0.3": ("words", {"bos_token": "<s>", "eos_token": "</s>"}, ("[INST]", "[/INST]")),
    "llama2": ("words", {"bos_token": "<s>", "eos_token": "</s>"}, ()),
    "questions": ("bytes", {"eos_token": "<|endoftext|>"}, ()),
}


class Pair(NamedTuple):
    """One template read by both."""

    ours: ChatTokenizer
    theirs: PreTrainedTokenizerFast


def inner(kind: str, specials: list[str]) -> Library:
    """A tokenizer of a few hundred tokens: over bytes as GPT-2 does, or over words with a mark for the space before each."""
    if kind == "bytes":
        made = Library.from_str(_bytes())
    else:
        made = Library(models.BPE(unk_token="<unk>", byte_fallback=True))
        made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
        made.decoder = decoders.Sequence(
            [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        )
        fallback = [f"<0x{byte:02X}>" for byte in range(256)]
        made.train_from_iterator(
            TEXT, trainers.BpeTrainer(vocab_size=420, special_tokens=["<unk>", *fallback], show_progress=False)
        )
        content = json.loads(made.to_str())
        content["added_tokens"] = [one for one in content["added_tokens"] if one["content"] == "<unk>"]
        made = Library.from_str(json.dumps(content))
    made.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in specials])
    if "<|im_start|>" in specials:  # added, not special: as the tokenizers of Qwen3 have them
        made.add_tokens([AddedToken(tag, normalized=False) for tag in ("<think>", "</think>")])
    return made


@cache
def _bytes() -> str:
    return Tokenizer.train(TEXT, 330).to_json()


@cache
def pair(name: str, loss: str = "assistant", source: str | None = None) -> Pair:
    """Both sides of template `name`, or of another `source` with its tokenizer."""
    kind, named, more = KNOWN[name]
    library = inner(kind, sorted({*named.values(), *more}))
    text = (TEMPLATES / f"{name}.jinja").read_text() if source is None else source
    theirs = PreTrainedTokenizerFast(tokenizer_object=Library.from_str(library.to_str()), chat_template=text, **named)
    settings: dict[str, Any] = {**named, "chat_template": text}
    tokenizer = Tokenizer(library, name, library.token_to_id(named["eos_token"]), settings)
    return Pair(ChatTokenizer(tokenizer, Template.of(text, settings, name), loss), theirs)


def talk(*texts: str, system: str | None = None) -> tuple[dict[str, str], ...]:
    """User and assistant in turns, after a system message where one is given."""
    said = [{"role": ("user", "assistant")[n % 2], "content": text} for n, text in enumerate(texts)]
    return (*([{"role": "system", "content": system}] if system is not None else []), *said)
