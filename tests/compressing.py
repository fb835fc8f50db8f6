"""What the tests of compression share: the small trained model, its text, and matrices rounded part by part."""

from __future__ import annotations

import copy
from functools import cache
from pathlib import Path

import torch
from torch import nn

from burnish.compress.sample_files import cut, token_lists
from burnish.compress.samples import Samples
from burnish.compress.subject import Subject, subject_of
from burnish.data.text import Texts
from burnish.load.folder import open_folder
from burnish.models.layers import Linear

QUICKSTART = Path(__file__).parent / "fixtures" / "quickstart"
TEXT = "asset:austen/persuasion"  # what the small model was not trained on


@cache
def subject() -> Subject:
    """The small trained model; nobody may change its weights."""
    return subject_of("quickstart", open_folder(QUICKSTART), "cpu")


def excerpts(folder: Path) -> tuple[Path, Path]:
    """Two files with the beginnings of novels: one to calibrate on, one to judge on."""
    found = []
    for name, source in (("calibrate.txt", "asset:austen/emma"), ("judge.txt", TEXT)):
        found.append(folder / name)
        found[-1].write_text(next(iter(Texts.open([source]).documents()))[5000:45000])
    return found[0], found[1]


@cache
def rows(count: int, length: int = 64, text: str = TEXT) -> Samples:
    """The first rows of a text."""
    return Samples.of(cut(token_lists(subject().checkpoint, [text]), length)[:count])


@torch.no_grad()
def rounded(model: nn.Module, bits: int = 4, worse: tuple[str, ...] = (), worse_bits: int = 2) -> nn.Module:
    """A copy with every matrix of the layers rounded to the nearest of 2^bits steps a row; those named `worse` to fewer."""
    made = copy.deepcopy(model)
    for name, module in made.named_modules():
        if isinstance(module, Linear) and name.startswith("layers."):
            most = 2 ** ((worse_bits if any(part in name for part in worse) else bits) - 1) - 1
            scale = module.weight.abs().amax(1, keepdim=True) / most
            module.weight = nn.Parameter((module.weight / scale).round() * scale)
    return made
