"""How the next token is chosen from the scores: greedy, temperature, top-k, top-p; each row draws for itself.

Shape letters: B rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from burnish.errors import UserError


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
        return logits_BV.argmax(-1).tolist()
    ids_BV, cumulative_BV = kept(logits_BV, options)
    # One uniform number a row, looked up in the cumulative weights; drawn outside torch, so the same on every device.
    draws = [generator.random() for generator in generators]
    points_B1 = torch.tensor(draws, dtype=torch.float64, device=logits_BV.device)[:, None] * cumulative_BV[:, -1:]
    rank_B1 = torch.searchsorted(cumulative_BV, points_B1, right=True).clamp(max=cumulative_BV.shape[1] - 1)
    return ids_BV.gather(1, rank_B1)[:, 0].tolist()


def penalised(logits_V: Tensor, options: Sampling, written: Mapping[int, int]) -> Tensor:
    """The scores of a row that has `written` tokens so many times, with its penalties."""
    if not written or not options.penalised:
        return logits_V
    ids = torch.tensor(list(written), device=logits_V.device)
    times = torch.tensor(list(written.values()), dtype=logits_V.dtype, device=logits_V.device)
    return logits_V.index_add(0, ids, -(options.presence_penalty + options.frequency_penalty * times))


def probabilities(logits_V: Tensor, options: Sampling) -> Tensor:
    """What `choose` draws a token of a row by: [V], float64 on the CPU, summing to 1; for a temperature above 0."""
    ids_1V, cumulative_1V = kept(logits_V[None], options)
    weight_V = cumulative_1V[0].diff(prepend=cumulative_1V.new_zeros(1))
    made_V = torch.zeros(len(logits_V), dtype=torch.float64)
    made_V[ids_1V[0].cpu()] = weight_V.cpu() / weight_V.sum().cpu()
    return made_V


def kept(logits_BV: Tensor, options: Sampling) -> tuple[Tensor, Tensor]:
    """Token ids by falling probability and their cumulative weights (float64; what the options drop weighs nothing).

    Temperature first, then the top_k largest, then the smallest set of those that holds top_p of their probability
    (nucleus sampling, Holtzman et al. 2020), then those with min_p of the largest probability (Nguyen et al. 2024, arXiv
    2407.01082). The largest is always kept. Equal scores stay in the order of their ids.
    """
    scaled_BV, ids_BV = (logits_BV.double() / options.temperature).sort(dim=-1, descending=True, stable=True)
    if 0 < options.top_k < scaled_BV.shape[1]:
        scaled_BV, ids_BV = scaled_BV[:, : options.top_k], ids_BV[:, : options.top_k]
    probability_BV = scaled_BV.softmax(-1)
    before_BV = probability_BV.cumsum(-1) - probability_BV  # what the more likely tokens hold together
    outside = (before_BV >= options.top_p) | (probability_BV < options.min_p * probability_BV[:, :1])
    outside[:, 0] = False
    return ids_BV, probability_BV.masked_fill(outside, 0.0).cumsum(-1)
