"""Embed: texts to vectors with an encoder, many texts in one packed row, so that nothing is spent on pads.

Shape letters: N texts, H hidden size, T tokens of a row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from burnish.data.encoder_texts import EncoderText, EncoderTokenizer
from burnish.encoders.config import EncoderConfig
from burnish.errors import UserError
from burnish.load.checkpoint import Checkpoint
from burnish.load.encoder import load_encoder
from burnish.load.sentence_folder import CLS, Pooling, pooling_of
from burnish.models.encoder import Encoder, first_positions

ROW = 2048  # tokens of a packed row: enough for products at full rate, few enough for a small machine
Text = str | tuple[str, str]
Vectors = NDArray[np.float32]


@dataclass(frozen=True)
class Embedder:
    """An encoder with its tokenizer and how its folder says that vectors are made."""

    model: Encoder
    config: EncoderConfig
    tokenizer: EncoderTokenizer
    pooling: Pooling

    @classmethod
    def of(cls, checkpoint: Checkpoint, device: torch.device | str = "cpu") -> Embedder:
        """Read from a checkpoint. Raises UserError for what is no encoder, and for one without a tokenizer of its size."""
        dtype = torch.float32 if str(device) == "cpu" else None
        model, config = load_encoder(checkpoint, dtype=dtype, device=device)
        if checkpoint.tokenizer is None:
            raise UserError(f"{checkpoint.where}: holds no tokenizer.json, so no text can be read with it")
        pooling = pooling_of(checkpoint, config)
        tokenizer = EncoderTokenizer(checkpoint.tokenizer.tokenizer, checkpoint.where, pooling.limit, pooling.lower)
        if tokenizer.vocab > config.vocab:
            raise UserError(
                f"{checkpoint.where}: tokenizer.json has {tokenizer.vocab} tokens, the encoder rows for {config.vocab}"
            )
        return cls(model.eval(), config, tokenizer, pooling)

    def embed(self, texts: Sequence[str], row: int = ROW, progress: Callable[[int], None] | None = None) -> Vectors:
        """Vectors [N, H] in float32, in the order of the texts. `progress` is told how many are done.

        A text's vector does not depend on the others, but for the rounding of products of another size.
        """
        return self._each(texts, row, self.config.hidden, self._pooled, progress)

    def classify(self, texts: Sequence[Text], row: int = ROW, progress: Callable[[int], None] | None = None) -> Vectors:
        """Scores of the classes [N, C] of each text or pair. Raises UserError for an encoder that classifies no texts."""
        if self.config.head != "sequence":
            raise UserError(
                f"this encoder has a head of kind {self.config.head!r}; one that classifies texts is needed"
            )
        return self._each(texts, row, len(self.config.labels), self._scores, progress)

    @torch.inference_mode()
    def _each(
        self,
        texts: Sequence[Text],
        row: int,
        width: int,
        made: Callable[[Tensor, list[int]], Tensor],
        progress: Callable[[int], None] | None,
    ) -> Vectors:
        """What `made` makes of hidden states [1, T, H] and lengths, row by row."""
        out = np.zeros((len(texts), width), dtype=np.float32)
        device, done = self.model.embed.weight.device, 0
        for group in packed(self.tokenizer.encode(texts), row):
            lengths = [len(text.ids) for text in group]
            ids = torch.tensor([[token for text in group for token in text.ids]], device=device)
            types = torch.tensor([[kind for text in group for kind in text.types]], device=device)
            hidden = self.model(ids, segments=(lengths,), types_BS=types if types.any() else None)
            out[done : done + len(group)] = made(hidden, lengths).float().cpu().numpy()
            done += len(group)
            if progress:
                progress(done)
        return out

    def _pooled(self, hidden: Tensor, lengths: list[int]) -> Tensor:
        flat, sizes = hidden[0].float(), torch.tensor(lengths, device=hidden.device)
        if self.pooling.mode == CLS:
            vectors = flat[sizes.cumsum(0) - sizes]
        else:
            vectors = torch.segment_reduce(flat, "mean", lengths=sizes)
        return torch.nn.functional.normalize(vectors, dim=-1) if self.pooling.normalise else vectors

    def _scores(self, hidden: Tensor, lengths: list[int]) -> Tensor:
        return self.model.logits(hidden, first_positions(hidden[..., 0], (lengths,)))


def packed(texts: Sequence[EncoderText], row: int) -> Iterator[list[EncoderText]]:
    """Neighbours that together have at most `row` tokens; a longer text is alone."""
    group: list[EncoderText] = []
    held = 0
    for text in texts:
        if group and held + len(text.ids) > row:
            yield group
            group, held = [], 0
        group.append(text)
        held += len(text.ids)
    if group:
        yield group
