"""SmolLM2 in 8 bits by what it is calibrated on: perplexity of *Persuasion*, for bench/int8.py.

Its weights come from a file of 4-bit blocks, so that losses of weights are optimistic; activations are what they are.
"""

from __future__ import annotations

import copy
import math

import torch
from torch import nn

from burnish.compress.representative import surprise
from burnish.compress.sample_files import token_lists
from burnish.compress.samples import Samples
from burnish.load.checkpoint import Checkpoint
from burnish.load.model import load_model
from burnish.load.source import open_model
from burnish.mesh import Mesh
from burnish.techniques import int8
from burnish.techniques.int8 import Config
from int8_sets import counted_padding, noise, random_tokens

LENGTH, CALIBRATED, JUDGED, SKIPPED = 128, 8, 12, 2000
SETTINGS = {
    "dynamic": Config(activations="dynamic"),
    "dynamic, not smoothed": Config(activations="dynamic", smooth="off"),
    "static": Config(),
    "static max": Config(calibrator="max"),
    "static max, not smoothed": Config(calibrator="max", smooth="off"),
    "static relative, not smoothed": Config(calibrator="relative", smooth="off"),
}


def rows(checkpoint: Checkpoint, novel: str, count: int) -> Samples:
    """Rows of a novel, from behind its beginning."""
    (ids,) = token_lists(checkpoint, (f"asset:austen/{novel}",))
    starts = range(SKIPPED, SKIPPED + count * LENGTH, LENGTH)
    return Samples.of([list(ids[at : at + LENGTH]) for at in starts])


def measured() -> dict[str, float]:
    """Perplexities by settings, and by what was calibrated on with the largest values as ranges."""
    checkpoint = open_model("smollm2")
    model, _ = load_model(checkpoint, dtype=torch.float32)
    model.eval()
    real, judged = rows(checkpoint, "emma", CALIBRATED), rows(checkpoint, "persuasion", JUDGED)

    def after(config: Config, samples: Samples, noisy: bool = False) -> float:
        made: nn.Module = copy.deepcopy(model)
        if noisy:
            with noise(made):
                table = int8.search(config, made, samples)
        else:
            table = int8.search(config, made, samples)
        int8.apply(config, made, Mesh(), table)
        return math.exp(surprise(made, judged))

    found = {"smollm2.float": math.exp(surprise(model, judged))}
    found |= {f"smollm2.{name}": after(config, real) for name, config in SETTINGS.items()}
    largest = SETTINGS["static max"]
    found["smollm2.set random tokens"] = after(largest, random_tokens(real, 49_000))
    found["smollm2.set noise"] = after(largest, real, noisy=True)
    found["smollm2.set padding"] = after(largest, counted_padding(real, 12, LENGTH))
    return found
