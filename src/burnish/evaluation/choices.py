"""Choices: how likely a decoder finds each way to go on, and which it would take.

As the Language Model Evaluation Harness (Gao et al. 2021) has it: a choice's score is the sum of the log probabilities of
its tokens after the prompt; `acc` takes the best sum, `acc_norm` the best sum over the bytes of the choice. Prompt and choice
are read together, so that tokens at their border are those of the whole text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from burnish.data.tokenizer import Tokenizer
from burnish.errors import UserError
from burnish.models.decoder import Decoder


class Continuation(NamedTuple):
    """A text to read and where in it the part begins whose tokens are scored."""

    ids: list[int]
    scored: int


def continuation(tokenizer: Tokenizer, prompt: str, choice: str, first: int | None, where: str) -> Continuation:
    """Prompt and choice as one text, with a space between unless there is white space on one side of the border.

    White space at the prompt's end counts as the choice's, as it does in the words a tokenizer knows. An empty prompt is
    the `first` token alone. Raises UserError naming `where` when there is nothing to score or no token before it.
    """
    kept = prompt.rstrip()
    border = prompt[len(kept) :] or ("" if choice[:1].isspace() or not prompt else " ")
    before = tokenizer.encode_prompt(kept)
    whole = tokenizer.encode_prompt(kept + border + choice)
    if not before:
        if first is None:
            raise UserError(f"{where}: an empty prompt, and the model has no token to begin with")
        before, whole = [first], [first, *whole]
    scored = min(len(before), len(whole) - 1)
    if not choice.strip() or len(whole) < 2:
        raise UserError(f"{where}: an empty choice has no token to score")
    return Continuation(whole, scored)


@torch.inference_mode()
def log_likelihoods(
    model: Decoder,
    texts: Sequence[Continuation],
    batch: int = 8,
    progress: Callable[[int], None] | None = None,
) -> list[float]:
    """Sum of the log probabilities (nats) of each text's scored tokens; `batch` texts of about one length at a time."""
    device = model.embed.weight.device
    order = sorted(range(len(texts)), key=lambda k: -len(texts[k].ids))
    scores = [0.0] * len(texts)
    for at in range(0, len(order), batch):
        rows = order[at : at + batch]
        longest = len(texts[rows[0]].ids) - 1
        ids = torch.zeros(len(rows), longest, dtype=torch.long)
        for row, k in enumerate(rows):
            given = texts[k].ids[:-1]
            ids[row, : len(given)] = torch.tensor(given)
        hidden = model(ids.to(device))  # what follows a text's end is seen by none of its tokens
        for row, k in enumerate(rows):
            scored = texts[k].scored
            wanted = torch.tensor(texts[k].ids[scored:], device=device)
            logits = model.logits(hidden[row, scored - 1 : len(texts[k].ids) - 1])
            wide = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)
            scores[k] = float(wide.gather(1, wanted[:, None]).double().sum())
        if progress:
            progress(at + len(rows))
    return scores


def taken(scores: Sequence[float], choices: Sequence[str]) -> tuple[int, int]:
    """Index of the best choice by its sum, and by its sum over its bytes; the first of equal ones."""
    by_byte = [score / len(choice.encode()) for score, choice in zip(scores, choices, strict=True)]
    return scores.index(max(scores)), by_byte.index(max(by_byte))
