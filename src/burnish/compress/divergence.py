"""Divergence: how far a compressed model's outputs are from the model's own, on the same inputs.

Of distributions: the Kullback-Leibler divergence KL(p || q) = sum p (ln p - ln q), p the model's own, in nats, and how often
the likeliest outcome is the same. Of vectors: the cosine. What the model itself says is kept, as hidden states, not as
logits: these are the vocabulary times larger.

Shape letters: T tokens, H hidden size, V outcomes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from burnish.compress.samples import Samples
from burnish.errors import UserError
from burnish.serve.embed import Embedder

CHUNK = 512  # tokens whose logits exist at once
Sums = NDArray[np.float64]


@dataclass(frozen=True)
class Seen:
    """What a model did on the probe. `divergence` is the mean; `agreement` names what a person reads.

    `above` and `below` are sums for each piece (row, text): nats and tokens of a decoder, cosines and ones of an embedder.
    """

    divergence: float
    agreement: dict[str, float]
    above: Sums = field(default_factory=lambda: np.zeros(0))
    below: Sums = field(default_factory=lambda: np.zeros(0))


class Probe(Protocol):
    """Fixed inputs, and what the model itself says to them."""

    unit: str

    @property
    def itself(self) -> Seen:
        """The model held against itself."""
        ...

    def run(self, model: nn.Module) -> object:
        """Run a model over the inputs; what it gives is not looked at."""
        ...

    def seen(self, model: nn.Module) -> Seen:
        """A model held against it. Raises UserError when its outputs are not finite."""
        ...


class TokenProbe:
    """Next-token distributions of a decoder over rows of text."""

    unit = "nats per token"

    def __init__(self, model: nn.Module, samples: Samples, batch: int = 4) -> None:
        self.samples, self.batch = samples, batch
        self._head = model.get_parameter("head.weight").detach()
        self._hidden = self.run(model)
        self._itself: Seen | None = None

    @property
    def itself(self) -> Seen:
        """Its own nats; no divergence."""
        if self._itself is None:
            self._itself = self._held(self._head, self._hidden)
        return self._itself

    def run(self, model: nn.Module) -> list[Tensor]:
        """Hidden states of the rows, [T, H] a batch."""
        return [_hidden(model, ids, mask) for ids, mask in self.samples.batches(self.batch)]

    def seen(self, model: nn.Module) -> Seen:
        """KL divergence and nats of another model on the same rows."""
        return self._held(_head(model), self.run(model))

    @torch.no_grad()
    def _held(self, head: Tensor, theirs: Sequence[Tensor]) -> Seen:
        nats, kl, same, tokens = np.zeros(len(self.samples.ids)), 0.0, 0, np.zeros(len(self.samples.ids))
        at = 0
        for (ids, mask), own, other in zip(self.samples.batches(self.batch), self._hidden, theirs, strict=True):
            labels, rows = ids[:, 1:][_scored(mask)], _scored(mask).nonzero()[:, 0]
            for k in range(0, len(labels), CHUNK):
                part = slice(k, k + CHUNK)
                p = (own[part] @ self._head.T).float().log_softmax(-1)
                q = (other[part] @ head.T).float().log_softmax(-1)
                if not torch.isfinite(q).all():
                    raise UserError("the compressed model's scores are not finite")
                kl += float((p.exp() * (p - q)).sum(dtype=torch.float64))
                same += int((p.argmax(-1) == q.argmax(-1)).sum())
                paid = -q.gather(1, labels[part].to(q.device)[:, None])[:, 0].double().cpu().numpy()
                np.add.at(nats, at + rows[part].numpy(), paid)
                np.add.at(tokens, at + rows[part].numpy(), 1.0)
            at += len(ids)
        total = max(tokens.sum(), 1.0)
        return Seen(kl / total, {"kl_nats": kl / total, "top1": same / total}, nats, tokens)


def _scored(mask: Tensor) -> Tensor:
    """Which of the positions [B, S - 1] have a real token behind them to predict."""
    return mask[:, 1:] & mask[:, :-1]


@torch.no_grad()
def _hidden(model: nn.Module, ids: Tensor, mask: Tensor) -> Tensor:
    """Hidden states [T, H] of the scored positions of a batch."""
    device = model.get_parameter("embed.weight").device
    hidden: Tensor = model(ids.to(device), mask_BS=mask.to(device))
    return hidden[:, :-1][_scored(mask).to(device)]


def _head(model: nn.Module) -> Tensor:
    """The matrix that makes scores, of float numbers whatever it is kept as."""
    head = model.get_submodule("head")
    dequantized = getattr(head, "dequantized", None)
    found: Tensor = head.get_parameter("weight") if dequantized is None else dequantized()
    return found.detach()


class VectorProbe:
    """What an encoder makes of texts: vectors, or scores of classes where it has a head for them."""

    def __init__(self, embedder: Embedder, texts: Sequence[str]) -> None:
        self._embedder, self._texts = embedder, list(texts)
        self._classes = embedder.config.head == "sequence"
        self.unit = "nats per text" if self._classes else "1 - cosine"
        self._own = self._made(embedder.model)

    def run(self, model: nn.Module) -> NDArray[np.float32]:
        """Vectors, or scores, of the texts."""
        other = replace(self._embedder, model=model)  # type: ignore[arg-type]
        return other.classify(self._texts) if self._classes else other.embed(self._texts)

    def _made(self, model: nn.Module) -> Sums:
        made = self.run(model)
        if not np.isfinite(made).all():
            raise UserError("the compressed model's vectors are not finite")
        return made.astype(np.float64)

    @property
    def itself(self) -> Seen:
        """The encoder held against itself."""
        return self._held(self._own)

    def seen(self, model: nn.Module) -> Seen:
        """Cosines, or KL divergences, of another model on the same texts."""
        return self._held(self._made(model))

    def _held(self, theirs: Sums) -> Seen:
        ones = np.ones(len(theirs))
        if self._classes:
            p, q = (x - np.logaddexp.reduce(x, axis=1, keepdims=True) for x in (self._own, theirs))
            kl = (np.exp(p) * (p - q)).sum(1)
            same = p.argmax(1) == q.argmax(1)
            return Seen(
                float(kl.mean()), {"kl_nats": float(kl.mean()), "top1": float(same.mean())}, same.astype(float), ones
            )
        lengths = np.linalg.norm(self._own, axis=1) * np.linalg.norm(theirs, axis=1)
        cosine = (self._own * theirs).sum(1) / np.maximum(lengths, np.finfo(np.float64).tiny)
        found = {"cosine": float(cosine.mean()), "cosine_lowest": float(cosine.min())}
        return Seen(1 - found["cosine"], found, cosine, ones)
