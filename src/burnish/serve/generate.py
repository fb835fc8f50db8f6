"""Continue prompts with a decoder: one read of all prompts together, then one token a row and step from the cache.

Shape letters: B rows, S positions of the longest prompt, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from burnish.errors import UserError
from burnish.models.cache import KVCache
from burnish.models.decoder import Decoder
from burnish.serve.sampling import Sampling, choose, row_generators
from burnish.serve.text import Decode, TextStream


@dataclass(frozen=True)
class Completion:
    """What was added to one prompt. `text` needs a decoder, else it is empty."""

    ids: list[int]  # new tokens: without the prompt, the ending token, and tokens that hold any of a stop string
    text: str
    reason: str  # "eos", "stop" or "length"


def generate(
    model: Decoder, prompts: Sequence[Sequence[int]], options: Sampling, *, decode: Decode | None = None
) -> list[list[int]]:
    """The new tokens of each prompt (see `Completion.ids`); raises UserError as `complete` does."""
    return [completion.ids for completion in complete(model, prompts, options, decode=decode)]


@torch.inference_mode()
def complete(
    model: Decoder,
    prompts: Sequence[Sequence[int]],
    options: Sampling,
    *,
    decode: Decode | None = None,
    emit: Callable[[int, str], None] | None = None,
) -> list[Completion]:
    """Continue every prompt; rows of unequal length are padded on the left and masked, so no row sees a pad.

    decode: tokens to text, needed for stop strings and for `emit`, which gets (row, new text) as it becomes certain.
    A row's random numbers depend on (seed, row) only. Its scores depend on the other rows by rounding alone: about 1e-6
    in float32, more in 16 bit, where a near tie may fall differently in another batch.
    Raises UserError for an empty prompt, a token outside the vocabulary, a prompt too long for the model's positions,
    stop strings without a decoder, or scores that are not finite.
    """
    check_prompts(prompts, options, model.shape.vocab, model.shape.max_positions)
    if decode is None and (options.stop or emit is not None):
        raise UserError("stop: stop strings and streamed text need the tokenizer; pass decode")
    if not prompts:
        return []
    rows = [_Row(options, TextStream(decode or (lambda ids: ""), options.stop)) for _ in prompts]
    generators = row_generators(options.seed, len(prompts))
    device = model.embed.weight.device
    ids_BS, mask_BS = left_padded(prompts)
    ids_BS, mask = ids_BS.to(device), None if bool(mask_BS.all()) else mask_BS.to(device)
    cache = KVCache(
        model.shape, len(prompts), ids_BS.shape[1] + options.max_new_tokens, model.embed.weight.dtype, device
    )
    for _ in range(options.max_new_tokens):
        hidden_BSH = model(ids_BS, mask_BS=mask, cache=cache)
        tokens = choose(model.logits(hidden_BSH[:, -1]), options, generators)
        for number, (row, token) in enumerate(zip(rows, tokens, strict=True)):
            text = row.take(token)
            if emit is not None and text:
                emit(number, text)
        if all(row.reason for row in rows):
            break
        ids_BS, mask = torch.tensor(tokens, device=device)[:, None], None
    for number, row in enumerate(rows):
        if emit is not None and (text := row.stream.finish()):
            emit(number, text)
    return [Completion(row.stream.kept_ids, row.stream.text, row.reason or "length") for row in rows]


class _Row:
    """One row in progress: it ends by itself, whatever the other rows do."""

    def __init__(self, options: Sampling, stream: TextStream) -> None:
        self.ends = options.ends
        self.stream = stream
        self.reason = ""

    def take(self, token: int) -> str:
        if self.reason:
            return ""  # this row has ended and only keeps its place in the batch
        if token in self.ends:
            self.reason = "eos"
            return ""
        text = self.stream.push(token)
        if self.stream.stopped:
            self.reason = "stop"
        return text


def check_prompts(prompts: Sequence[Sequence[int]], options: Sampling, vocab: int, max_positions: int) -> None:
    """Raises UserError naming the first prompt that cannot be continued, and the value that would work."""
    for row, prompt in enumerate(prompts):
        if len(prompt) == 0:
            raise UserError(f"prompt {row} is empty; one token at least is needed, such as the beginning-of-text token")
        if min(prompt) < 0 or max(prompt) >= vocab:
            raise UserError(
                f"prompt {row}: token {max(prompt)} or {min(prompt)} is outside the vocabulary 0..{vocab - 1}"
            )
        room = max_positions - len(prompt)
        if options.max_new_tokens > room:
            fix = f"max_new_tokens must be {room} or less" if room > 0 else f"the prompt must be under {max_positions}"
            asked = f"{len(prompt)} tokens and {options.max_new_tokens} new ones"
            raise UserError(f"prompt {row}: {asked} exceed the model's {max_positions} positions; {fix}")


def left_padded(prompts: Sequence[Sequence[int]], pad: int = 0) -> tuple[Tensor, Tensor]:
    """Prompts of unequal length as (ids [B, S], mask [B, S], True = real), every prompt ending in the last column."""
    longest = max(len(prompt) for prompt in prompts)
    ids_BS = torch.full((len(prompts), longest), pad, dtype=torch.long)
    mask_BS = torch.zeros(len(prompts), longest, dtype=torch.bool)
    for row, prompt in enumerate(prompts):
        ids_BS[row, longest - len(prompt) :] = torch.tensor(prompt, dtype=torch.long)
        mask_BS[row, longest - len(prompt) :] = True
    return ids_BS, mask_BS


def unpadded(ids_BS: Tensor, mask_BS: Tensor) -> list[list[int]]:
    """A batch padded on either side, as prompts. Raises UserError where a pad lies between real tokens."""
    mask_BS = mask_BS.bool()
    turns = (mask_BS[:, 1:] != mask_BS[:, :-1]).sum(1) + mask_BS[:, 0].long() + mask_BS[:, -1].long()
    for row in (turns > 2).nonzero()[:, 0].tolist():
        raise UserError(f"row {row}: pads lie between real tokens; put them all before or all after the prompt")
    return [ids[mask].tolist() for ids, mask in zip(ids_BS, mask_BS, strict=True)]
