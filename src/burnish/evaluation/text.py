"""Text evaluation: perplexity and bits per byte of a text under a model, by a window that slides over it.

The windows are those of the Hugging Face guide "Perplexity of fixed-length models": each begins `stride` tokens after the
one before and is `length` long, the last one shorter; it scores the tokens that no earlier window held, with all before
them in the window as context. So each token but the first is scored exactly once; the first has nothing to be predicted
from and is not. With T tokens scored, of b UTF-8 bytes, and their negative log likelihood N in nats:

    perplexity = exp(N / T)                    bits per byte = N / (b ln 2)

The guide's own listing weighs a window by one token less than it scores; here each token weighs the same.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from burnish.data.batch import Ids
from burnish.data.text import Texts
from burnish.data.tokenizer import Tokenizer
from burnish.errors import UserError
from burnish.models.decoder import Decoder
from burnish.ops.cross_entropy import IGNORED, chunked_cross_entropy

LENGTH = 1024  # tokens of a window where nothing else is asked for and the model takes as many
BATCH = 4
Progress = Callable[[int, int, float], None]  # tokens done, tokens in all, seconds left


class TextScore(NamedTuple):
    """Negative log likelihood in nats of `tokens` tokens that spell `bytes` UTF-8 bytes; scores of several texts add up."""

    nats: float
    tokens: int
    bytes: int

    @property
    def perplexity(self) -> float:
        """exp of the mean a token; infinite beyond what a float holds."""
        mean = self.nats / self.tokens
        return math.exp(mean) if mean < math.log(1.7e308) else math.inf

    @property
    def bits_per_byte(self) -> float:
        """Comparable between tokenizers (Gao et al. 2020, section 3.1)."""
        return self.nats / math.log(2) / self.bytes if self.bytes else math.nan

    def plus(self, other: TextScore) -> TextScore:
        """The score of both texts together."""
        return TextScore(self.nats + other.nats, self.tokens + other.tokens, self.bytes + other.bytes)


class Window(NamedTuple):
    """Tokens begin .. end of a text, of which first .. end are scored."""

    begin: int
    first: int
    end: int


def windows(tokens: int, length: int, stride: int) -> Iterator[Window]:
    """The windows over a text of `tokens` tokens. Raises UserError for sizes that leave a token unscored or without context."""
    if length < 2:
        raise UserError(f"length {length}: a window needs a token to score and one before it; 2 and more work")
    if not 1 <= stride < length:
        raise UserError(
            f"stride {stride}: values 1 to {length - 1} leave every token of a window of {length} one before it"
        )
    scored = 1
    for begin in range(0, max(tokens - 1, 0), stride):
        end = min(begin + length, tokens)
        yield Window(begin, scored, end)
        scored = end
        if end == tokens:
            return


def perplexity(
    module: Decoder,
    ids: Sequence[int] | Ids,
    length: int,
    stride: int,
    batch: int = 1,
    text_bytes: int = 0,
    progress: Callable[[int], None] | None = None,
) -> TextScore:
    """Score one text. `text_bytes` are those of its tokens but the first; `batch` windows go through the model at once.

    `progress` is told how many tokens have been scored. Only logits of a chunk of scored tokens exist at a time. Raises
    UserError for a text of fewer than two tokens, and as `windows` does.
    """
    found = list(windows(len(ids), length, stride))
    if batch < 1:
        raise UserError(f"batch {batch}: counts windows at once; 1 and more work")
    if not found:
        raise UserError("the text has fewer than two tokens, so there is none to predict")
    device = module.head.weight.device
    tokens = torch.as_tensor(ids, dtype=torch.long)
    nats, done = 0.0, 0
    training = module.training
    module.eval()
    try:
        with torch.no_grad():
            for at in range(0, len(found), batch):
                some = found[at : at + batch]
                nats += _nats(module, *(part.to(device) for part in _stacked(tokens, some)))
                done += sum(window.end - window.first for window in some)
                if progress:
                    progress(done)
    finally:
        module.train(training)
    return TextScore(nats, done, text_bytes)


def _stacked(tokens: Tensor, some: Sequence[Window]) -> tuple[Tensor, Tensor]:
    """Inputs and labels [rows, longest - 1]: what comes after a shorter row's end is seen by none of its tokens."""
    longest = max(window.end - window.begin for window in some) - 1
    inputs = torch.zeros(len(some), longest, dtype=torch.long)
    labels = torch.full((len(some), longest), IGNORED)
    for row, (begin, first, end) in enumerate(some):
        inputs[row, : end - 1 - begin] = tokens[begin : end - 1]
        labels[row, first - 1 - begin : end - 1 - begin] = tokens[first:end]
    return inputs, labels


def _nats(module: Decoder, inputs: Tensor, labels: Tensor) -> float:
    """Only the scored positions go through the head, which is the larger part of a small model's work."""
    chosen = labels != IGNORED
    hidden = module(inputs)[chosen]
    return float(chunked_cross_entropy(hidden, module.head.weight, labels[chosen]))


def evaluate_text(
    model: str,
    text: str,
    length: int | None = None,
    stride: int | None = None,
    batch: int = BATCH,
    device: str = "cpu",
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Score every document of a file, folder or `asset:` under a model; each is a text of its own, read as a prompt is.

    `length` defaults to what the model was trained on at once or LENGTH, `stride` to half of it. Raises UserError naming
    what cannot be used.
    """
    from burnish.load.model import load_model
    from burnish.load.source import open_model

    texts = Texts.open([text])
    checkpoint = open_model(model)
    if checkpoint.tokenizer is None:
        raise UserError(f"{checkpoint.where}: holds no tokenizer, so no text can be read with it")
    module, config = load_model(checkpoint, dtype=torch.float32 if device == "cpu" else None, device=device)
    seen = checkpoint.config.get("trained_length")
    length = length or min(config.max_positions, seen if isinstance(seen, int) else LENGTH)
    if length > config.max_positions:
        raise UserError(f"length {length} exceeds the {config.max_positions} positions of {checkpoint.where}")
    stride = stride or length // 2
    next(windows(length, length, stride))  # refuse sizes before a long text is read
    files = checkpoint.tokenizer
    tokenizer = Tokenizer.read(files.tokenizer, checkpoint.where, config.eos, files.settings or None)
    tokenizer.check_vocab(config.vocab)
    documents = [(ids, size) for ids, size in _read(texts, tokenizer) if len(ids) > 1]
    if not documents:
        raise UserError(f"{text}: no document has two tokens, so there is none to predict")
    score, total, began = TextScore(0.0, 0, 0), sum(len(ids) - 1 for ids, _ in documents), time.monotonic()

    def watch(done: int) -> None:
        done += score.tokens
        if progress:
            progress(done, total, (time.monotonic() - began) * (total / done - 1))

    for ids, size in documents:
        score = score.plus(perplexity(module, ids, length, stride, batch, size, watch))
    return {
        "model": checkpoint.where,
        "text": text,
        "perplexity": score.perplexity,
        "bits_per_byte": score.bits_per_byte,
        "nats_per_token": score.nats / score.tokens,
        "tokens": score.tokens,
        "bytes": score.bytes,
        "documents": len(documents),
        "length": length,
        "stride": stride,
        "dtype": str(module.head.weight.dtype).removeprefix("torch."),
        "device": device,
        "seconds": time.monotonic() - began,
    }


def _read(texts: Texts, tokenizer: Tokenizer) -> Iterator[tuple[list[int], int]]:
    """Ids of each document with what the tokenizer adds, and the bytes of all tokens but the first."""
    special = set(tokenizer.special_tokens.values())
    for document in texts.documents():
        ids = tokenizer.encode_prompt(document)
        yield ids, len(document.encode()) if ids[:1] and ids[0] in special else tokenizer.count_bytes(ids[1:])
