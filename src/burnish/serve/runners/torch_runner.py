"""The runner of plain torch: the modules of a decoder, on any device and in any of its formats."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from burnish.config import ModelConfig
from burnish.models.decoder import Decoder
from burnish.models.rotary import Rotary, rotary_angles, rotate
from burnish.serve.rounding import Scales
from burnish.serve.runners.runner import Fit, Made


class TorchRunner:
    """A decoder's own modules between its attentions."""

    exact, bytes, held, whole = False, 0, None, None

    def __init__(self, model: Decoder, config: ModelConfig, fit: Fit | None = None) -> None:
        self.model, self.config = model, config
        self.scales: Scales | None = None
        if fit is not None:
            self.scales = fit(self).scales

    @property
    def dtype(self) -> torch.dtype:
        return self.model.embed.weight.dtype

    @property
    def device(self) -> torch.device:
        return self.model.embed.weight.device

    @property
    def threads(self) -> int:
        return torch.get_num_threads()

    def reserve(self, tokens: int) -> None:
        """Nothing: torch makes what it needs as it goes."""

    def begin(self, ids_T: Tensor, positions_T: Tensor) -> Made:
        shape, hidden = self.config, self.model.embed(ids_T)
        if self.model.positions is not None:
            return self._open(0, hidden + self.model.positions(positions_T), None)
        rotary = rotary_angles(positions_T[None], shape.head_dim, shape.rope_theta, hidden.dtype, shape.rope_scaling)
        return self._open(0, hidden, rotary)

    def go_on(self, layer: int, made: Made, attended_TND: Tensor) -> Made:
        return self._open(layer + 1, self._close(layer, made.hidden, attended_TND), made.places)

    def scores(self, made: Made, attended_TND: Tensor, rows_R: Tensor) -> Tensor:
        last = len(self.model.layers) - 1
        hidden = self._close(last, made.hidden[rows_R], attended_TND[rows_R])
        scores_RV = self.model.logits(self.model.norm(hidden))
        return scores_RV.to(torch.promote_types(scores_RV.dtype, torch.float32))

    def _open(self, layer: int, hidden_TH: Tensor, rotary: Rotary | None) -> Made:
        block: Any = self.model.layers[layer]
        attention = block.attention
        x = block.attention_norm(hidden_TH)
        q, k, v = (part(x).unflatten(-1, (-1, attention.head_dim)) for part in (attention.q, attention.k, attention.v))
        if attention.q_norm is not None:
            q, k = attention.q_norm(q), attention.k_norm(k)
        if rotary is not None:
            q, k = (rotate(part.unsqueeze(0), rotary)[0] for part in (q, k))
        return Made(hidden_TH, q, k, v, rotary)

    def _close(self, layer: int, hidden_TH: Tensor, attended_TND: Tensor) -> Tensor:
        block: Any = self.model.layers[layer]
        hidden_TH = hidden_TH + block.attention.o(attended_TND.flatten(-2))
        return hidden_TH + block.mlp(block.mlp_norm(hidden_TH).unsqueeze(0))[0]
