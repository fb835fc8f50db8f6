"""Steps: the bytes by kind that a rank holds between steps and at the fullest moment of one."""

from __future__ import annotations

import numpy as np

from burnish.architecture import Architecture
from burnish.mapping import Mapping
from burnish.memory import moments
from burnish.memory.moments import Case
from burnish.memory.parts import parts_of
from burnish.memory.sizes import Sizes
from burnish.memory.stages import Stage, stages_of
from burnish.mesh import N

KINDS = ("parameters", "gradients", "optimizer", "activations", "logits", "buffers", "workspaces", "reserve")


def stage_memory(
    model: Architecture, shape: tuple[N, N], mapping: Mapping, sizes: Sizes, balanced: N = 0
) -> dict[str, N]:
    """Bytes by kind at the fullest moment of a step, (3, n): first, second and last stage, one column a candidate.

    `shape`: tokens of a sequence, and sequences of a step. Numbers are plain or arrays of n. "buffers" are tensors passed
    between ranks and what the optimizer makes in passing; "reserve" is what the process holds beside tensors.
    """
    return peak(case_of(model, shape, mapping, sizes, balanced))


def case_of(
    model: Architecture,
    shape: tuple[N, N],
    mapping: Mapping,
    sizes: Sizes,
    balanced: N = 0,
    stages: Stage | None = None,
) -> Case:
    """The case of a model and its mapping; `stages` replaces the even cut of a pipeline."""
    seq, batch = shape
    parts = parts_of(model, sizes)
    micro = np.maximum(batch // (mapping.dp * mapping.micro_batch), 1)
    stage = stages or stages_of(parts, mapping, micro, balanced)
    tokens = mapping.micro_batch * seq / mapping.cp
    return Case(parts, stage, moments.split_of(mapping), sizes, mapping, micro, tokens, seq)


def between_steps(case: Case) -> dict[str, N]:
    """Bytes by kind when a step has ended and its activations are gone."""
    states = moments.state_bytes(case)
    return {**states, "buffers": moments.boundary_bytes(case), "workspaces": case.sizes.workspace}


def peak(case: Case) -> dict[str, N]:
    """Bytes by kind at the fullest moment."""
    sizes, steady = case.sizes, between_steps(case)
    kept, again = moments.activation_bytes(case)
    logits = moments.logit_bytes(case)
    held = sizes.logits_held * logits
    gradients = steady["gradients"]
    # Gradients made anew are not there when the first micro batch reaches the loss; a backward ends with all of them.
    late = gradients * ((np.asarray(sizes.gradients_stay) == 0) & (case.micro <= 1))
    backward = again + held > logits
    moving = (1 + sizes.reserve) * (kept + np.where(backward, again + held, logits)) - late
    update = moments.update_bytes(case)
    stepping = update > moving
    activations = np.where(stepping, 0.0, kept + np.where(backward, again, 0.0))
    shown = {
        **steady,
        "gradients": gradients - np.where(stepping, 0.0, late),
        "activations": activations,
        "logits": np.where(stepping, 0.0, np.where(backward, held, logits)),
        "buffers": steady["buffers"] + moments.buffer_bytes(case) + np.where(stepping, update, 0.0),
    }
    shown["reserve"] = sizes.base + moments.piece_bytes(case) + sizes.reserve * (shown["activations"] + shown["logits"])
    like = np.zeros(np.broadcast_shapes(*(np.shape(value) for value in shown.values())))
    return {kind: shown[kind] + like for kind in KINDS}
