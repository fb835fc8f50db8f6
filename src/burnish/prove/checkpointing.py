"""Claim: full checkpointing keeps at most 15 % of the saved bytes for at most a third more FLOPs, and changes no result."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from burnish.config import ModelConfig
from burnish.data.batch import Batch
from burnish.describe import Shapes, describe
from burnish.measure import observed_step
from burnish.mesh import Mesh
from burnish.models.decoder import Decoder
from burnish.prove.claim import Verdict
from burnish.recipe import Optim
from burnish.techniques import checkpointing
from burnish.train.loss import LanguageModelLoss
from burnish.train.optim import build_optimizer
from burnish.train.step import Trainable, plain_trainable
from burnish.work import Observation, fold

FLOPS_BAR, SAVED_BAR = 4 / 3, 0.15
ROWS, SEQ, STEPS = 2, 256, 3


@dataclass(frozen=True)
class Seen:
    """One mode: FLOPs of a step and bytes saved, predicted and observed, and the losses of the first steps."""

    predicted: tuple[int, int]
    observed: tuple[int, int]
    losses: list[float]


def small_model() -> ModelConfig:
    """About 3 million parameters."""
    return ModelConfig(
        vocab=512, hidden=256, ffn=704, heads=4, kv_heads=2, layers=4, head_dim=64, tied=True, max_positions=SEQ
    )


def trainable_of(model: ModelConfig, mode: str) -> Trainable:
    """The same weights for every mode."""
    loss = LanguageModelLoss(Decoder(model, torch.Generator().manual_seed(0)))
    plain = plain_trainable(loss, build_optimizer(loss, Optim()), clip=1.0)
    return checkpointing.apply(checkpointing.Config.model_validate(mode), plain, Mesh())


def random_batch(model: ModelConfig, rows: int, seq: int) -> Batch:
    """Rows of random tokens, every one of which counts a label."""
    ids, labels = np.random.default_rng(0).integers(0, model.vocab, (2, rows, seq))
    return Batch(ids, labels, np.tile(np.arange(seq), (rows, 1)), None)


def totals(seen: Observation) -> tuple[int, int]:
    """FLOPs of a step, and bytes saved by the forward of one micro batch."""
    flops = sum(value for (metric, *_), value in seen.items() if metric == "flops")
    return flops, seen["saved", "forward", "", ""]


def predicted_totals(model: ModelConfig, mode: str, rows: int, seq: int) -> tuple[int, int]:
    """The same from the description alone."""
    plain = describe(model, Shapes(rows=rows, seq=seq))
    return totals(fold(checkpointing.predict(checkpointing.Config.model_validate(mode), plain, Mesh())))


def observe_mode(model: ModelConfig, mode: str) -> Seen:
    """Train a few steps, the first one observed."""
    trainable, batch = trainable_of(model, mode), random_batch(model, ROWS, SEQ)
    first, seen = observed_step(trainable, [batch], 1e-3)
    losses = [first.loss, *(trainable.step([batch], 1e-3).loss for _ in range(STEPS - 1))]
    return Seen(predicted_totals(model, mode, ROWS, SEQ), totals(seen), losses)


def measure() -> Verdict:
    """Observe a step with nothing, with everything and with only cheap operations recomputed."""
    model = small_model()
    none, full, selective = (observe_mode(model, mode) for mode in ("none", "full", "selective"))
    flops, saved = (full.observed[k] / none.observed[k] for k in (0, 1))
    lean_flops, lean_saved = (selective.observed[k] / none.observed[k] for k in (0, 1))
    same = none.losses == full.losses == selective.losses
    exact = all(mode.predicted == mode.observed for mode in (none, full, selective))
    return Verdict(
        claim="checkpointing",
        statement="Recomputing each layer in backward keeps a small part of the saved bytes for about a quarter more work; "
        "recomputing only what is no product costs no product at all. No loss changes.",
        varied="memory.checkpointing: none, full, selective",
        held=f"{model.parameters:,} parameters, {ROWS} x {SEQ} tokens, weights, batch, optimizer",
        expected=f"full: FLOPs <= {FLOPS_BAR:.3f}x, saved <= {SAVED_BAR:.0%}; selective: FLOPs 1x; losses equal bit for bit; "
        "predicted = observed",
        measured=f"full: FLOPs {flops:.3f}x, saved {saved:.1%}; selective: FLOPs {lean_flops:.3f}x, saved {lean_saved:.1%}; "
        f"losses {'equal' if same else 'differ'}; predicted {'=' if exact else 'not'} observed",
        holds=flops <= FLOPS_BAR and saved <= SAVED_BAR and lean_flops == 1 and lean_saved < 1 and same and exact,
        why="A layer needs only its input to be run again. A backward pass is two forwards, so one more forward is a third "
        "of a step at most: the last product of a layer and the loss head are not run again.",
        source="Chen et al. 2016, arXiv 1604.06174; Korthikanti et al. 2022, arXiv 2205.05198",
        code="src/burnish/techniques/checkpointing.py, src/burnish/ops/recompute.py",
    )
