"""Does an exported folder say what the model says? Reload it and compare weights, logits, and text for text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from burnish.data.tokenizer import END_OF_TEXT, Tokenizer
from burnish.export.tokenizer import check_tokenizer
from burnish.load.model import load_folder
from burnish.models.decoder import Decoder
from burnish.serve.generate import complete
from burnish.serve.sampling import Sampling

__all__ = ["check_export", "check_tokenizer"]


# What a reader of the folder might take for something else: nothing, a special token's name, white space, rare letters.
PROMPTS = ("", "It was", f"a{END_OF_TEXT}b", "  two\n", "naïve \u8a9e")
NEW_TOKENS = 8


@torch.no_grad()
def check_export(model: Decoder, folder: str | Path, tokenizer: Path | None = None) -> dict[str, Any]:
    """Reload `folder` and compare with `model`, and with the `tokenizer` it was trained with where one is given.

    Keys: `weights_equal` (bit for bit, after the cast to the file's dtype), `weights_different` (names), `tensors`
    (count), `tie_kept`, `config_equal`, `dtype`, `logits_max_abs_difference` (on a fixed batch of two
    rows of unequal length: what the cast to the file's dtype alone costs). With a tokenizer also `prompts_equal` (the
    same ids for the same text) and `text_equal` (the same greedy text after them; of the weights as cast). Raises
    UserError as `load_folder` does.
    """
    plain: Decoder = getattr(model, "_orig_mod", model)
    device = plain.embed.weight.device  # the same kernels on both sides, so that only the files are judged
    loaded, config = load_folder(folder, device=device)
    ours, theirs = dict(plain.named_parameters()), dict(loaded.named_parameters())
    dtype = loaded.embed.weight.dtype
    different = sorted(ours.keys() ^ theirs.keys())
    different += [n for n in theirs if n in ours and not _same_bits(ours[n].to(dtype), theirs[n])]
    mask_BS = torch.ones(2, min(33, config.max_positions), dtype=torch.bool)
    mask_BS[1, : mask_BS.shape[1] // 3] = False
    ids_BS = torch.randint(config.vocab, mask_BS.shape, generator=torch.Generator().manual_seed(0))
    ids_BS, mask_BS = ids_BS.to(device), mask_BS.to(device)
    difference = _logits(plain, ids_BS, mask_BS) - _logits(loaded.to(plain.embed.weight.dtype), ids_BS, mask_BS)
    found = {
        "weights_equal": not different,
        "weights_different": different,
        "tensors": len(theirs),
        "tie_kept": (loaded.head.weight is loaded.embed.weight) == config.tied,
        "config_equal": config == plain.shape,
        "dtype": str(dtype).removeprefix("torch."),
        "logits_max_abs_difference": difference.abs().max().item(),
    }
    if tokenizer is not None:
        as_trained = plain if plain.embed.weight.dtype == dtype else loaded
        ours_too, theirs_too = Tokenizer.load(tokenizer, config.eos), Tokenizer.load(folder, config.eos)
        start = [] if config.bos is None else [config.bos]
        # One trained here has no settings of its own, and reads prompts as it read its text.
        trained_here = ours_too.settings is None
        wanted = [start + ours_too.encode(p) if trained_here else ours_too.encode_prompt(p) for p in PROMPTS]
        given = [theirs_too.encode_prompt(prompt) for prompt in PROMPTS]
        found["prompts_equal"] = wanted == given
        found["text_equal"] = _texts(as_trained, wanted, ours_too) == _texts(loaded, given, theirs_too)
    return found


def _texts(model: Decoder, prompts: list[list[int]], tokenizer: Tokenizer) -> list[str]:
    """Greedy continuations of those prompts that hold a token and leave room."""
    room = model.shape.max_positions - NEW_TOKENS
    fitting = [prompt for prompt in prompts if 0 < len(prompt) <= room]
    return [c.text for c in complete(model, fitting, Sampling(max_new_tokens=NEW_TOKENS), decode=tokenizer.decode)]


def _same_bits(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


def _logits(model: Decoder, ids_BS: Tensor, mask_BS: Tensor) -> Tensor:
    """Scores of the real tokens only, [tokens, V] in float32."""
    return model.logits(model(ids_BS, mask_BS=mask_BS)).float()[mask_BS]
