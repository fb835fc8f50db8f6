"""Claim: half the work of a segmenter can go, if norms are measured again and it is trained on beside an equal control."""

from __future__ import annotations

import copy
from dataclasses import asdict

import torch
from torch import nn

from burnish.prove.claim import Verdict
from burnish.prove.segmentation import FIRST, ORGANS, recipe, scans
from burnish.train.optim import lr_at
from burnish.vision.kept_channels import apply
from burnish.vision.learner import labeller, trainable_of
from burnish.vision.networks import build
from burnish.vision.observed_network import observe
from burnish.vision.operators import operators_of
from burnish.vision.patches import batches_of
from burnish.vision.prepared import Case
from burnish.vision.prune import Target, choose
from burnish.vision.recipe import VisionRecipe
from burnish.vision.renormalise import reestimate
from burnish.vision.scan_lessons import lessons_of, score_cases
from burnish.vision.trace import predict

STEPS, MORE, SLICES, JUDGED, READ = 150, 300, 64, 32, 8
SHARE, WITHIN = 0.5, 0.01  # of the FLOPs of a forward; Dice
TRACED, SEEN = (2, 1, 32, 32), (3, 1, 48, 48)
WIDTHS = (16, 32, 64)


def network() -> VisionRecipe:
    """The recipe of the claim about segmentation, with wider levels, on images as they are."""
    own = recipe()
    wider = own.network.model_copy(update={"channels": WIDTHS})
    return own.model_copy(update={"network": wider, "augment": own.augment.model_copy(update={"enabled": False})})


def trained(own: VisionRecipe, model: nn.Module, case: Case, steps: int, seed: int) -> nn.Module:
    """The same model after `steps` more on a case, a schedule of its own and batches by `seed`."""
    trainable, pool = trainable_of(own, model), lessons_of(own, [case], []).pool
    batches = batches_of(own, pool, seed)
    for step in range(steps):
        trainable.step(batches(step), lr_at(step, own.schedule, steps, own.optim.lr))  # type: ignore[arg-type]
    return model


def images_of(case: Case) -> list[torch.Tensor]:
    """Slices of a case as batches [B, C, H, W]."""
    return list(torch.from_numpy(case.image).transpose(0, 1).split(READ))


def unlike(model: nn.Module) -> str:
    """What the network takes other than its trace predicts at another size of images, "" for nothing."""
    predicted, observed = (asdict(one) for one in (predict(operators_of(model, TRACED), SEEN), observe(model, SEEN)))
    return ", ".join(f"{key} {observed[key]} for {value}" for key, value in predicted.items() if observed[key] != value)


def scores() -> tuple[dict[str, float], str]:
    """Dice of the steps and of the control; what the pruned network takes other than its trace predicts."""
    own, torch_seed = network(), 0
    many, judged = scans(FIRST, SLICES, 1), scans(FIRST, JUDGED, 3)
    torch.manual_seed(torch_seed)
    base = trained(own, build(own.network), many, STEPS, seed=0)
    control = trained(own, copy.deepcopy(base), many, MORE, seed=1)

    def dice(model: nn.Module) -> float:
        return score_cases(labeller(own, model, "cpu"), [judged], list(ORGANS)).mean

    cut = apply(copy.deepcopy(base), choose(base, TRACED, Target(SHARE, "flops")))
    found = {"base": dice(base), "pruned": dice(cut)}
    reestimate(cut, images_of(many))
    found["norms measured again"] = dice(cut)
    trained(own, cut, many, MORE, seed=1)
    found |= {"trained on": dice(cut), "control": dice(control)}
    return found, unlike(cut)


def measure() -> Verdict:
    """Prune, measure norms again, train on; beside it the unpruned network trained on as long."""
    found, other = scores()
    behind = found["control"] - found["trained on"]
    return Verdict(
        claim="pruning",
        statement="A segmenter keeps what it knows at half of its work, fewer channels in every layer, when its norms "
        "are measured again and it is trained on; it is judged beside the whole network trained on as long.",
        varied=f"FLOPs of a forward: all, at most {1 - SHARE:.0%}, by channels of all layers alike",
        held=f"data, seeds, batches and steps: {STEPS}, then {MORE} more for both",
        expected=f"at most {WITHIN:g} Dice below the control; norms measured again gain; work as its trace predicts",
        measured="; ".join(f"{name} {value:.3f}" for name, value in found.items())
        + f"; work {f'not as predicted: {other}' if other else 'as predicted'}",
        holds=behind <= WITHIN and found["norms measured again"] > found["pruned"] and not other,
        why="the smallest filters add least to what is read, but the means that norms subtract are those of all channels; the "
        "control tells what is owed to more training from what is owed to pruning",
        source="Li et al. 2017, arXiv 1608.08710; Li et al. 2020, arXiv 2007.02491; Fang et al. 2023, arXiv 2301.12900",
        code="src/burnish/vision/prune.py, src/burnish/vision/renormalise.py",
    )
