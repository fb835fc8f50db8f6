"""GGUF tokenizers as data: kinds of tokens, and what each way of cutting text before byte pair encoding is called.

Sources: llama.cpp's llama-vocab.cpp and the tokenizer.json of the models that each way is named for.
"""

from __future__ import annotations

from dataclasses import dataclass

NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
KINDS = (NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE)
BYTES, PIECES = "gpt2", "llama"  # tokenizer.ggml.model: byte-level pairs, and SentencePiece's pairs with scores
WITHOUT = ("none", "no_vocab")
PADDING = "[PAD{}]"  # what rows without a token are called, by their id

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
DIGIT = r"\p{N}"
_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


@dataclass(frozen=True)
class Cut:
    """`names`: what tokenizer.ggml.pre calls it, the one that is written first. `patterns` cut one after another.

    `composed`: text is put into Unicode's form NFC first. `whole`: a piece that is a token is taken as it is, whatever
    its merges. `beginning`: a text begins with bos where the file does not say.
    """

    names: tuple[str, ...]
    patterns: tuple[str, ...]
    composed: bool = False
    whole: bool = False
    beginning: bool = False


CUTS = (
    Cut(("gpt-2", "gpt2", "phi-2"), (GPT2,)),
    Cut(("smollm", "starcoder", "refact", "codeshell"), (DIGIT, GPT2)),
    Cut(("qwen2", "deepseek-r1-qwen"), (_WORDS + r"\p{N}" + _REST,), composed=True),
    Cut(("llama-bpe", "llama3", "llama-v3"), (_WORDS + r"\p{N}{1,3}" + _REST,), whole=True, beginning=True),
    Cut(("default",), (r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
)
