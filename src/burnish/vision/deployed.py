"""Deployed: a network as ONNX files, in floats and in 8 bits, each checked, judged on the run's exam and timed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import nn

from burnish.vision.bundle import INT8, ONNX
from burnish.vision.inference import Labeller, of_onnx
from burnish.vision.learner import labeller
from burnish.vision.learning import Watched
from burnish.vision.onnx_int8 import Judge, Settings, quantize
from burnish.vision.onnx_network import export
from burnish.vision.recipe import VisionRecipe
from burnish.vision.recipe import replace as vary
from burnish.vision.stages import Stage, latency
from burnish.vision.trained import Base


def deployed(base: Base, model: nn.Module, folder: Path, key: str, watched: Watched) -> list[Stage]:
    """Write the files that the recipe asks for into `folder`; a stage for each. `key` names the network."""
    recipe = base.recipe
    if not recipe.output.onnx:
        return []
    assert recipe.images.patch is not None
    sizes = (1, recipe.network.in_channels, *recipe.images.patch)
    exported = export(model.cpu().eval(), sizes, folder / ONNX, recipe.network.divisor)
    watched.found.checks[f"{key}: ONNX, largest difference of scores"] = exported.difference
    stages = [_stage(base, folder / ONNX, f"{key}.onnx", f"{key}, ONNX", watched)]
    if recipe.int8.used:
        stages += _eight_bits(base, folder, key, watched)
    return stages


def _eight_bits(base: Base, folder: Path, key: str, watched: Watched) -> list[Stage]:
    """The 8-bit file, calibrated on training patches and judged on what is held out; none where it is not good enough."""
    recipe, found = base.recipe, watched.found
    settings = Settings(recipe.int8.method, recipe.int8.max_drop, threads=recipe.machine.threads)
    samples = list(_samples(recipe, base))
    made = quantize(folder / ONNX, folder / INT8, samples, settings, _judge(base) if base.lessons.held else None)
    found.notes.append(f"{key}, 8 bits: {made.verdict}")
    found.quality[f"{key}.int8.bytes"] = made.bytes / made.float_bytes
    if made.race is not None:
        found.quality[f"{key}.int8.speed"] = made.race.ratio
    if made.kept:
        found.notes.append(f"{key}, 8 bits: in float stay {', '.join(made.kept)}")
    return [_stage(base, folder / INT8, f"{key}.int8", f"{key}, 8 bits", watched)] if made.path else []


def _stage(base: Base, file: Path, key: str, name: str, watched: Watched) -> Stage:
    own = _by_file(base, file)
    stage = Stage(key, name, base.exam.score(own), None, None, file.stat().st_size, latency(own), None)
    watched.screen.say(f"{name}: {base.recipe.metric} {stage.scores.mean:.4f}")
    return stage


def _by_file(base: Base, file: Path, finished: bool = True) -> Labeller:
    own = labeller(base.recipe, base.model, "cpu", finished)
    return replace(own, predict=of_onnx(file, base.recipe.machine.threads))


def _judge(base: Base) -> Judge:
    def score(file: Path) -> float:
        return base.lessons.score(_by_file(base, file, finished=False)).mean

    return score


def _samples(recipe: VisionRecipe, base: Base) -> Iterator[NDArray[np.float32]]:
    """Training patches as they come to the network afterwards: not varied."""
    plain = base.lessons.batches(vary(recipe, {"augment.enabled": False}), recipe.train.seed)
    left, step = recipe.int8.samples, 0
    while left > 0:
        for batch in plain(step):
            if left > 0:
                yield batch.images[:left].numpy()
                left -= len(batch.images)
        step += 1
