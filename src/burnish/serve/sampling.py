"""How the next token is chosen from the scores: greedy, temperature, top-k, top-p; each row draws for itself.

Shape letters: B rows, V vocabulary, K tokens of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from burnish.errors import UserError

LIKELIEST = 1024  # tokens that are put in order before all of a larger vocabulary are


@dataclass(frozen=True)
class Sampling:
    """Options of one generation. Raises UserError naming the option and its legal values.

    temperature 0 is greedy; top_k 0, top_p 1 and min_p 0 keep every token; a `stop` string ends a row and is not part of its
    text; an `eos` token ends a row likewise. Penalties (0: none) lower the scores of tokens that a row has written:
    `presence_penalty` once, `frequency_penalty` each time.
    """

    max_new_tokens: int = 128
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int = 0
    stop: tuple[str, ...] = ()
    eos: int | tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        legal = {
            "max_new_tokens": (self.max_new_tokens >= 1, "1 or more"),
            "temperature": (0 <= self.temperature < float("inf"), "0 (greedy) or more"),
            "top_k": (self.top_k >= 0, "0 (all) or more"),
            "top_p": (0 < self.top_p <= 1, "more than 0, at most 1 (all)"),
            "min_p": (0 <= self.min_p < 1, "0 (all) or more, less than 1"),
            "presence_penalty": (-2 <= self.presence_penalty <= 2, "-2 to 2"),
            "frequency_penalty": (-2 <= self.frequency_penalty <= 2, "-2 to 2"),
            "seed": (self.seed >= 0, "0 or more"),
            "stop": (not isinstance(self.stop, str) and all(self.stop), "a tuple of strings that are not empty"),
        }
        for name, (fine, values) in legal.items():
            if not fine:
                raise UserError(f"{name} {getattr(self, name)!r}: {values}")

    @property
    def drops(self) -> bool:
        """Whether some tokens may not be drawn at all."""
        return self.top_k > 0 or self.top_p < 1 or self.min_p > 0

    @property
    def penalised(self) -> bool:
        """Whether scores depend on what was written."""
        return bool(self.presence_penalty or self.frequency_penalty)

    @property
    def ends(self) -> frozenset[int]:
        """The tokens that end a row."""
        return frozenset(() if self.eos is None else (self.eos,) if isinstance(self.eos, int) else self.eos)


def row_generators(seed: int, rows: int) -> list[np.random.Generator]:
    """One stream of random numbers a row, from (seed, row): a row draws the same whatever the other rows do."""
    return [np.random.default_rng([seed, row]) for row in range(rows)]


def choose(logits_BV: Tensor, options: Sampling, generators: Sequence[np.random.Generator]) -> list[int]:
    """The next token of each row. Raises UserError when a row's scores are not finite."""
    if not bool(torch.isfinite(logits_BV).all()):
        row = int((~torch.isfinite(logits_BV)).any(1).nonzero()[0])
        raise UserError(
            f"row {row}: the model's scores are not finite; its weights may be damaged or its dtype too narrow"
        )
    if options.temperature == 0:
        return likeliest(logits_BV)
    ids_BK, cumulative_BK = (
        kept(logits_BV, options) if options.drops else (None, _weights(logits_BV, options).cumsum(-1))
    )
    # One uniform number a row, looked up in the cumulative weights; drawn outside torch, so the same on every device.
    draws = [generator.random() for generator in generators]
    points_B1 = torch.tensor(draws, dtype=torch.float64, device=logits_BV.device)[:, None] * cumulative_BK[:, -1:]
    rank_B1 = torch.searchsorted(cumulative_BK, points_B1, right=True).clamp(max=cumulative_BK.shape[1] - 1)
    return (rank_B1 if ids_BK is None else ids_BK.gather(1, rank_B1))[:, 0].tolist()


def likeliest(logits_BV: Tensor) -> list[int]:
    """The token of the highest score of each row, the first of equal ones."""
    if logits_BV.device.type == "cpu" and logits_BV.dtype == torch.float32:
        return logits_BV.numpy(force=True).argmax(-1).tolist()  # in a tenth of torch's time
    return logits_BV.argmax(-1).tolist()


def penalised(logits_V: Tensor, options: Sampling, written: Mapping[int, int]) -> Tensor:
    """The scores of a row that has `written` tokens so many times, with its penalties."""
    if not written or not options.penalised:
        return logits_V
    ids = torch.tensor(list(written), device=logits_V.device)
    times = torch.tensor(list(written.values()), dtype=logits_V.dtype, device=logits_V.device)
    return logits_V.index_add(0, ids, -(options.presence_penalty + options.frequency_penalty * times))


def probabilities(logits_V: Tensor, options: Sampling) -> Tensor:
    """What `choose` draws a token of a row by: [V], float64 on the CPU, summing to 1; for a temperature above 0."""
    if not options.drops:
        return _weights(logits_V, options).cpu()
    ids_1K, cumulative_1K = kept(logits_V[None], options)
    weight_K = cumulative_1K[0].diff(prepend=cumulative_1K.new_zeros(1))
    made_V = torch.zeros(len(logits_V), dtype=torch.float64)
    made_V[ids_1K[0].cpu()] = weight_K.cpu() / weight_K.sum().cpu()
    return made_V


def _weights(logits_BV: Tensor, options: Sampling) -> Tensor:
    """Probability of every token, float64."""
    return (logits_BV.double() / options.temperature).softmax(-1)


def kept(logits_BV: Tensor, options: Sampling) -> tuple[Tensor, Tensor]:
    """Token ids by falling probability and their cumulative weights (float64; what the options drop weighs nothing).

    Temperature first, then the top_k largest, then the smallest set of those that holds top_p of their probability
    (nucleus sampling, Holtzman et al. 2020), then those with min_p of the largest probability (Nguyen et al. 2024, arXiv
    2407.01082). The largest is always kept. Equal scores stay in the order of their ids. Ids behind the last that is kept may
    be left out: of a large vocabulary the `LIKELIEST` are looked at first, and are mostly enough.
    """
    weight_BV = _weights(logits_BV, options)
    if options.top_k <= LIKELIEST < weight_BV.shape[1]:
        ids_BK = weight_BV.topk(LIKELIEST).indices.sort().values
        made_BK = _cut(weight_BV, ids_BK, options)
        least_B1 = weight_BV.gather(1, ids_BK).amin(1, keepdim=True)
        # What is kept must be more likely than what was left out: of equal ones, others may have been first.
        if bool(((made_BK.weights == 0) | (weight_BV.gather(1, made_BK.ids) > least_B1)).all()):
            return made_BK.ids, made_BK.weights.cumsum(-1)
    ids_BK, weight_BK = _cut(weight_BV, torch.arange(weight_BV.shape[1], device=weight_BV.device), options)
    return ids_BK, weight_BK.cumsum(-1)


class _Cut(NamedTuple):
    """Token ids by falling probability, and the probability of those that are kept."""

    ids: Tensor
    weights: Tensor


def _cut(weight_BV: Tensor, ids_BK: Tensor, options: Sampling) -> _Cut:
    """What is kept of some tokens, named in the order of their ids, as if there were no others but for their weight."""
    ids_BK = ids_BK.expand(len(weight_BV), -1)
    weight_BK, order_BK = weight_BV.gather(1, ids_BK).sort(dim=-1, descending=True, stable=True)
    ids_BK = ids_BK.gather(1, order_BK)
    if 0 < options.top_k < weight_BV.shape[1]:
        weight_BK, ids_BK = weight_BK[:, : options.top_k], ids_BK[:, : options.top_k]
        weight_BK = weight_BK / weight_BK.sum(-1, keepdim=True)
    before_BK = weight_BK.cumsum(-1) - weight_BK  # what the more likely tokens hold together
    outside = (before_BK >= options.top_p) | (weight_BK < options.min_p * weight_BK[:, :1])
    outside[:, 0] = False
    return _Cut(ids_BK, weight_BK.masked_fill(outside, 0.0))
