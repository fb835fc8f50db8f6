"""Claim: a segmenter that starts from another task's weights needs fewer steps, and learns other scanners by varied images."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from burnish.prove.claim import Verdict
from burnish.recipe import Schedule, Train
from burnish.train.optim import lr_at
from burnish.vision.learner import labeller, trainable_of
from burnish.vision.networks import build
from burnish.vision.patches import batches_of
from burnish.vision.prepared import Case
from burnish.vision.recipe import OPTIM, VisionRecipe, replace
from burnish.vision.scan_lessons import lessons_of, score_cases
from burnish.vision.sections import Augment, Images, Network

SIDE, MANY, FEW, JUDGED, LONG, SHORT = 48, 64, 6, 32, 150, 80
BATCH, SEED, LEAST = 8, 0, 0.02  # Dice that must be gained
ORGANS: dict[str, tuple[int, ...]] = {"round": (1,), "long": (2,)}
FIRST, SECOND = (0.15, 0.45, 0.8, 0.6), (0.05, 0.35, 0.5, 0.72)  # grey of air, body and both organs, by scanner


def scans(scanner: tuple[float, ...], count: int, seed: int, gamma: float = 1.0, field: float = 0.0) -> Case:
    """Slices of a body with a round and a long organ; `gamma` and a `field` that grows across are a scanner's own ways."""
    draw = np.random.default_rng(seed)
    y, x = np.mgrid[:SIDE, :SIDE] / SIDE
    labels = np.zeros((count, SIDE, SIDE), np.uint8)
    images = np.empty((1, count, SIDE, SIDE), np.float32)
    for k in range(count):
        at, turn = 0.5 + draw.uniform(-0.08, 0.08, 2), draw.uniform(-0.4, 0.4)
        body = inside(y, x, at, (0.4, 0.33), turn)
        labels[k][inside(y, x, at + draw.uniform(-0.12, 0.0, 2), (0.11, 0.09), turn)] = 1
        labels[k][
            inside(y, x, np.add(at, (0.12, 0.1)), (0.05, 0.18), turn + draw.uniform(-0.3, 0.3)) & (labels[k] == 0)
        ] = 2
        grey = np.where(body, scanner[1], scanner[0])
        for number in (1, 2):
            grey = np.where(labels[k] == number, scanner[number + 1], grey)
        images[0, k] = grey**gamma * (1 + field * (x - 0.5)) + draw.normal(0, 0.04, grey.shape)
    return Case("scan", images, labels, np.eye(4), (1.0, 1.0, 1.0))


def inside(
    y: NDArray[np.float64], x: NDArray[np.float64], at: NDArray[np.float64], radii: tuple[float, float], turn: float
) -> NDArray[np.bool_]:
    """The pixels of a turned ellipse."""
    across, along = y - at[0], x - at[1]
    first, second = across * np.cos(turn) + along * np.sin(turn), along * np.cos(turn) - across * np.sin(turn)
    return np.asarray((first / radii[0]) ** 2 + (second / radii[1]) ** 2 < 1)


def recipe() -> VisionRecipe:
    """A small network and what it is trained by."""
    return VisionRecipe(
        name="claim",
        network=Network(in_channels=1, out_channels=3, channels=(8, 16, 32)),
        images=Images(train=("made",), classes=ORGANS, patch=(SIDE, SIDE), normalise="unit", foreground=0.5),
        augment=Augment(rotate=20, scale=0.15, contrast=0.5, brightness=0.2, gamma=0.6, bias=0.4, noise=0.05),
        optim=OPTIM.model_copy(update={"lr": 4e-3}),
        schedule=Schedule(warmup_steps=4, min_lr_ratio=0.05),
        train=Train(steps=LONG, global_batch=BATCH, micro_batch=BATCH),
    )


def learned(case: Case, steps: int, own: VisionRecipe, start: nn.Module | None = None) -> nn.Module:
    """A network after `steps` on a case, from `start`'s weights or drawn ones."""
    torch.manual_seed(SEED)
    model = build(own.network)
    if start is not None:
        model.load_state_dict(start.state_dict())
    trainable, pool = trainable_of(own, model), lessons_of(own, [case], []).pool
    batches = batches_of(own, pool, SEED)
    for step in range(steps):
        trainable.step(batches(step), lr_at(step, own.schedule, steps, own.optim.lr))  # type: ignore[arg-type]
    return model


def scores() -> dict[str, float]:
    """Dice of four networks: on the second scanner by those of the first, and by those trained on a few of its own."""
    own = recipe()
    plain = replace(own, {"augment.enabled": False})
    many, few = scans(FIRST, MANY, 1), scans(SECOND, FEW, 2, gamma=1.3, field=0.4)
    judged = scans(SECOND, JUDGED, 3, gamma=1.3, field=0.4)
    shifted = scans(FIRST, JUDGED, 4, gamma=0.6, field=0.5)
    varied, unvaried = learned(many, LONG, own), learned(many, LONG, plain)

    def dice(model: nn.Module, case: Case) -> float:
        return score_cases(labeller(own, model, "cpu"), [case], list(ORGANS)).mean

    return {
        "transforms on": dice(varied, shifted),
        "transforms off": dice(unvaried, shifted),
        "pretrained": dice(learned(few, SHORT, own, varied), judged),
        "scratch": dice(learned(few, SHORT, own), judged),
    }


def measure() -> Verdict:
    """Both pairs, each at an equal budget."""
    found = scores()
    gains = found["pretrained"] - found["scratch"], found["transforms on"] - found["transforms off"]
    return Verdict(
        claim="segmentation",
        statement="Weights of another task are a start that a few images and steps do not make up for, and images varied as "
        "scanners vary teach a network to label those of a scanner that it has not seen.",
        varied=f"the start of {SHORT} steps on {FEW} slices; transforms in {LONG} steps on {MANY} slices",
        held="network, images, batches, steps, rates and seed of each pair",
        expected=f"both gain at least {LEAST} Dice",
        measured=f"pretrained {found['pretrained']:.3f}, scratch {found['scratch']:.3f}; "
        f"transforms on {found['transforms on']:.3f}, off {found['transforms off']:.3f}",
        holds=min(gains) >= LEAST,
        why="edges and shapes are alike in all tasks; without variation a network learns the greys of one scanner by heart",
        source="Isensee et al. 2021, nnU-Net; Zhang et al. 2020, BigAug (IEEE TMI 39)",
        code="src/burnish/vision/start.py, src/burnish/vision/augment.py",
    )
