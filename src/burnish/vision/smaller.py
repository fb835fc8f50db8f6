"""What is made of a trained network: a pruned one beside a control of the same budget, 8 bits, and the folder with all of it."""

from __future__ import annotations

import copy
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

from burnish.errors import BudgetNotMet
from burnish.export.folder import replacing_folder
from burnish.found import saved
from burnish.measure import clock
from burnish.runnable import best_checkpoint
from burnish.train.state import load_weights
from burnish.vision.bundle import KEPT, OURS, WEIGHTS, Card, load_network, open_bundle, save_card, save_weights
from burnish.vision.deployed import deployed
from burnish.vision.kept_channels import Kept, apply
from burnish.vision.learner import labeller
from burnish.vision.learning import Watched, learn
from burnish.vision.losses import loss_of
from burnish.vision.prune import Target, choose, taylor
from burnish.vision.recipe import replace
from burnish.vision.renormalise import reestimate
from burnish.vision.sections import Network
from burnish.vision.stages import Stage, classes_table, losses_table, table_of
from burnish.vision.trained import Base, judged


def afterwards(base: Base, watched: Watched) -> BudgetNotMet | None:
    """Judge the trained network, make what the recipe asks of it, and write the bundle.

    Gives what says that a smaller network lost more than it may; all else is done then too.
    """
    found, final, kept = watched.found, base.model, None
    found.tables = []
    with clock(found.seconds, "judge"):
        stages = [judged("trained", base, base.model, base.recipe.train.steps, watched)]
    if base.recipe.prune.used:
        final, kept, more = prune_and_train_on(base, watched)
        stages += more
    with clock(found.seconds, "export and check"):
        if kept is not None and base.recipe.int8.used:
            with TemporaryDirectory() as scratch:
                stages += deployed(base, base.model, Path(scratch), "trained", watched)
        stages += write_bundle(base, final, kept, watched)
    found.files = tuple(saved(path) for path in sorted(base.place.model.iterdir()))
    found.measured["file.bytes"] = float((base.place.model / WEIGHTS).stat().st_size)
    tables = (table_of(stages, base.exam.about), losses_table(stages), classes_table(stages, base.recipe.metric))
    found.tables += [table for table in tables if table is not None]
    found.pictures = base.exam.pictures(labeller(base.recipe, final, watched.device), base.recipe.output.overlays)
    found.quality |= {f"{one.key}.{name}": value for one in stages for name, value in one.scores.named.items()}
    best = next(one for one in stages if one.key == ("trained" if kept is None else "pruned"))
    found.quality |= {"score": best.scores.mean, "judged on": base.exam.about}
    return _lost(base, stages, found.quality)


def _lost(base: Base, stages: list[Stage], quality: dict[str, float | str]) -> BudgetNotMet | None:
    """Each drop that a budget is set for, into `quality`; what says that one is beyond it."""
    scores = {one.key: one.scores.mean for one in stages}
    over = []
    for key, against, most in (
        ("pruned", "control", base.recipe.prune.max_drop),
        ("trained.int8", "trained", base.recipe.int8.max_drop),
        ("pruned.int8", "pruned", base.recipe.int8.max_drop),
    ):
        if key in scores:
            drop = scores[against] - scores[key]
            quality[f"{key}.drop"] = drop
            if drop > most:
                over.append(
                    f"{key} loses {drop:.4f} {base.recipe.metric} against {against}, at most {most:g} may be lost"
                )
    return BudgetNotMet(f"{base.recipe.name}: {'; '.join(over)}; everything is written") if over else None


def prune_and_train_on(base: Base, watched: Watched) -> tuple[nn.Module, Kept, list[Stage]]:
    """The pruned network trained on, with its table, beside the whole one trained on as long; each stage judged."""
    recipe, found, folder = base.recipe, watched.found, base.place.path / "pruned"
    steps, told = recipe.prune.retrain_steps, recipe.train.steps
    identity = dict(base.identity) | {"prune": recipe.prune.model_dump(mode="json", exclude={"max_drop"})}
    model = copy.deepcopy(base.model)
    with clock(found.seconds, "prune"):
        kept = _kept(base, folder / KEPT)
        model = apply(model, kept)
        stages = [judged("cut, nothing else", base, model, told, watched, "cut")]
        plain = base.lessons.batches(replace(recipe, {"augment.enabled": False}), recipe.train.seed)
        reestimate(model, (batch.images for k in range(recipe.prune.reestimate) for batch in plain(k)))
        stages.append(judged("... normalisation measured again", base, model, told, watched, "reestimated"))
    learn(recipe, model, base.lessons, folder, steps, identity, watched, "train on, pruned")
    load_weights(best_checkpoint(folder / "checkpoints"), loss_of(recipe.network, model))
    stages.append(judged("pruned and trained on", base, model, told + steps, watched, "pruned"))
    control, place = copy.deepcopy(base.model), base.place.path / "control"
    learn(recipe, control, base.lessons, place, steps, identity, watched, "train on, control")
    load_weights(best_checkpoint(place / "checkpoints"), loss_of(recipe.network, control))
    stages.append(judged("control: whole, trained on as long", base, control, told + steps, watched, "control"))
    found.notes.append(f"pruned: {kept.reached}")
    return model, kept, stages


def _kept(base: Base, path: Path) -> Kept:
    """The table of an unfinished run, else one chosen now and written."""
    if path.is_file():
        return Kept.load(path)
    recipe, own = base.recipe, base.recipe.prune
    assert recipe.images.patch is not None
    sizes = (1, recipe.network.in_channels, *recipe.images.patch)
    importance = None
    if own.importance == "taylor":
        batches = [batch for k in range(own.reestimate) for batch in base.lessons.batches(recipe, k)(0)]
        importance = taylor(base.model, [partial(_loss, recipe.network, batch) for batch in batches])
    kept = choose(base.model, sizes, Target(own.target, own.kind, own.round_to), importance)
    kept.save(path)
    return kept


def _loss(network: Network, batch: Any, model: nn.Module) -> Tensor:
    found: Tensor = loss_of(network, model)(*batch.tensors(next(model.parameters()).device))
    return found


def write_bundle(base: Base, model: nn.Module, kept: Kept | None, watched: Watched) -> list[Stage]:
    """The folder that predicts without the recipe, and the stages of its files."""
    recipe = base.recipe
    card = Card(recipe=recipe.name, network=recipe.network, images=recipe.images, inference=recipe.inference)
    with replacing_folder(base.place.model, lambda name: name in OURS) as fresh:
        save_card(fresh, card)
        save_weights(fresh, model)
        if kept is not None:
            kept.save(fresh / KEPT)
        stages = deployed(base, model, fresh, "trained" if kept is None else "pruned", watched)
    found = watched.found
    found.checks["weights read back equal"] = _reads_back(base.place.model, model)
    return stages


def _reads_back(folder: Path, model: nn.Module) -> bool:
    theirs, ours = load_network(open_bundle(folder)).state_dict(), model.state_dict()
    return theirs.keys() == ours.keys() and all(torch.equal(theirs[name], ours[name].cpu()) for name in ours)
