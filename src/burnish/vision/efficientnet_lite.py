"""EfficientNet-lite0 up to a sixteenth of the image's size, as a backbone whose ImageNet weights exist.

EfficientNet (Tan and Le 2019, arXiv 1905.11946, table 1) without squeeze-and-excitation and with ReLU6, which 8 bits keep well.
The stage of a thirty-second is left out: it holds most of the weights, and boxes are found on finer maps.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor, nn

from burnish.errors import UserError

STEM, EPSILON = 32, 1e-3
COLOURS = 3


class Stage(NamedTuple):
    """Blocks alike but for the first one's stride."""

    blocks: int
    kernel: int
    stride: int
    expand: int
    width: int


STAGES = (
    Stage(1, 3, 1, 1, 16),
    Stage(2, 3, 2, 6, 24),
    Stage(2, 5, 2, 6, 40),
    Stage(3, 3, 2, 6, 80),
    Stage(3, 5, 1, 6, 112),
)
GIVEN = (1, 2, 4)  # stages whose maps are given: 4, 8 and 16 pixels a cell


class SamePadded(nn.Module):
    """A convolution and its norm; with stride 2 padded as TensorFlow pads even sides, one more behind than before."""

    def __init__(self, read: int, made: int, kernel: int, stride: int = 1, groups: int = 1) -> None:
        super().__init__()
        before = (kernel - stride) // 2
        self.pads = (before, kernel - stride - before) * 2 if stride > 1 else ()
        padding = 0 if stride > 1 else kernel // 2
        self.conv = nn.Conv2d(read, made, kernel, stride, padding, groups=groups, bias=False)
        self.norm = nn.BatchNorm2d(made, EPSILON)

    def forward(self, images: Tensor) -> Tensor:
        """The normed result."""
        found: Tensor = self.norm(self.conv(F.pad(images, self.pads) if self.pads else images))
        return found


class Block(nn.Module):
    """An inverted residual: wider, each channel by itself, narrower without an activation (arXiv 1801.04381, section 3.3)."""

    def __init__(self, read: int, stage: Stage, stride: int) -> None:
        super().__init__()
        inner = read * stage.expand
        self.expand = SamePadded(read, inner, 1) if stage.expand > 1 else None
        self.each = SamePadded(inner, inner, stage.kernel, stride, groups=inner)
        self.project = SamePadded(inner, stage.width, 1)
        self.adds = stride == 1 and read == stage.width

    def forward(self, images: Tensor) -> Tensor:
        """The block's result, its input added where their sizes are the same."""
        inner = images if self.expand is None else F.relu6(self.expand(images))
        found: Tensor = self.project(F.relu6(self.each(inner)))
        return images + found if self.adds else found


class EfficientNetLite(nn.Module):
    """Images [B, 3, H, W] in 0 to 1 to maps of 4, 8 and 16 pixels a cell, each brought to one of `channels`."""

    def __init__(self, read: int, channels: tuple[int, ...]) -> None:
        super().__init__()
        if read != COLOURS:
            raise UserError(
                f"network: an efficientnet-lite0 reads {COLOURS} channels, the pictures have {read}; use centernet"
            )
        self.widths = channels
        self.stem = SamePadded(COLOURS, STEM, 3, 2)
        self.stages, width = nn.ModuleList(), STEM
        for stage in STAGES:
            blocks = nn.Sequential()
            for number in range(stage.blocks):
                blocks.append(Block(width, stage, 1 if number else stage.stride))
                width = stage.width
            self.stages.append(blocks)
        self.lateral = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(STAGES[stage].width, own, 1, bias=False), nn.BatchNorm2d(own), nn.ReLU(inplace=True)
            )
            for stage, own in zip(GIVEN, channels, strict=True)
        )

    def forward(self, images: Tensor) -> list[Tensor]:
        """The maps, the finest first."""
        found = F.relu6(self.stem(images * 2 - 1))
        made: list[Tensor] = []
        for number, stage in enumerate(self.stages):
            found = stage(found)
            if number in GIVEN:
                made.append(self.lateral[len(made)](found))
        return made


# Layer of a block -> its convolution and its norm in the published file.
THEIRS = {"expand": ("_expand_conv", "_bn0"), "each": ("_depthwise_conv", "_bn1"), "project": ("_project_conv", "_bn2")}


def from_published(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors of a published EfficientNet-lite0 by the names that they have in a detector; those of no use are left out."""
    known = dict(_renamed())
    found = {}
    for name, tensor in tensors.items():
        layer, _, kind = name.rpartition(".")
        if layer in known:
            found[f"backbone.{known[layer]}.{kind}"] = tensor
    return found


def is_published(tensors: Mapping[str, Tensor]) -> bool:
    """Whether these are the names of a published EfficientNet."""
    return any(re.fullmatch(r"_blocks\.0\._depthwise_conv\.weight", name) for name in tensors)


def _renamed() -> Iterator[tuple[str, str]]:
    yield from (("_conv_stem", "stem.conv"), ("_bn0", "stem.norm"))
    count = itertools.count()
    for stage, own in enumerate(STAGES):
        for block, theirs in zip(range(own.blocks), count, strict=False):
            for layer, (convolution, norm) in THEIRS.items():
                if layer == "expand" and own.expand == 1:
                    continue
                yield f"_blocks.{theirs}.{convolution}", f"stages.{stage}.{block}.{layer}.conv"
                yield f"_blocks.{theirs}.{norm}", f"stages.{stage}.{block}.{layer}.norm"
