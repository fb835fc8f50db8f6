"""The classification loss as one module: token ids in, summed negative log likelihood of the classes out.

Shape letters: B rows, S positions, P texts (one a row unless rows are packed), C classes.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from burnish.data.batch import IGNORED
from burnish.encoders.config import EncoderConfig
from burnish.errors import UserError
from burnish.models.encoder import Encoder, first_positions
from burnish.tables.encoders import SEQUENCE, TOKENS
from burnish.train.loss import Pieces


class ClassificationLoss(nn.Module):
    """Encoder with a head and cross entropy together, so that whatever wraps it sees forward and loss as one call."""

    def __init__(self, model: Encoder) -> None:
        super().__init__()
        if model.head is None:
            raise UserError(
                "this encoder has no head to train; give it one with burnish.train.classification.with_head"
            )
        self.model = model
        self.of_texts = model.shape.head == SEQUENCE

    def forward(
        self, ids_BS: Tensor, labels_BS: Tensor, positions_BS: Tensor | None = None, segments: Pieces | None = None
    ) -> Tensor:
        """Sum over labels other than -100 of the negative log likelihood, in nats; a float32 scalar (float64 for float64).

        The class of a text stands at its first position, that of a token at its own. Pads are a piece of their own,
        without a label. Raises UserError for the class of a text that stands elsewhere.
        """
        hidden_BSH = self.model(ids_BS, positions_BS, segments)
        first_P, labels = None, labels_BS.flatten()
        if self.of_texts:
            first_P = first_positions(ids_BS, segments)
            labels = labels.index_select(0, first_P)
            self._check(labels_BS, labels)
        logits = self.model.logits(hidden_BSH, first_P).flatten(0, -2)
        wide = torch.promote_types(logits.dtype, torch.float32)
        return F.cross_entropy(logits.to(wide), labels, ignore_index=IGNORED, reduction="sum")

    def _check(self, labels_BS: Tensor, chosen_P: Tensor) -> None:
        if int((labels_BS != IGNORED).sum()) != int((chosen_P != IGNORED).sum()):
            raise UserError(
                "labels: the class of a text stands at its first position and nowhere else; the others are -100"
            )


def with_head(
    model: Encoder,
    config: EncoderConfig,
    labels: Sequence[str],
    *,
    tokens: bool = False,
    generator: torch.Generator | None = None,
) -> tuple[Encoder, EncoderConfig]:
    """An encoder on the same body with a new head for classes `labels`, of texts or, with `tokens`, of every token.

    The head's weights, and the pooler's where the body has none, are drawn as the config says. Raises ValueError for names
    of classes that are not unique.
    """
    kind = TOKENS if tokens else SEQUENCE
    changes = {"head": kind, "labels": tuple(labels), "pooler": not tokens}
    made = EncoderConfig(**config.model_dump() | changes)
    weight = model.embed.weight
    fresh = Encoder(made, generator).to(weight.device, weight.dtype)
    old = {name: tensor for name, tensor in model.state_dict().items() if not name.startswith("head.")}
    kept = {name: tensor for name, tensor in old.items() if made.pooler or not name.startswith("pooler.")}
    fresh.load_state_dict(kept, strict=False)
    return fresh, made
