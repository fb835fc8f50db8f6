"""Detector: a fully convolutional network that says at every fourth pixel how likely a box of each class is centred there.

Idea: objects are points (Zhou et al. 2019, arXiv 1904.07850): a heat map for each class, and at its peaks the size of the box
and where in the cell its centre lies. No anchors, and nothing of the graph compares boxes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch.nn.functional as F
from torch import Tensor, nn

from burnish.vision.boxes import GEOMETRY
from burnish.vision.efficientnet_lite import EfficientNetLite

RARE = 0.1  # score of every cell before anything is learned (Lin et al. 2017, arXiv 1708.02002, section 4.1)


def conv_norm_relu(read: int, made: int, kernel: int = 3, stride: int = 1) -> nn.Sequential:
    """A convolution that keeps the size but for its stride, batch norm, ReLU."""
    convolution = nn.Conv2d(read, made, kernel, stride, kernel // 2, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(made), nn.ReLU(inplace=True))


class PlainBackbone(nn.Module):
    """Levels of plain convolutions, each half as fine as the one before; the first has half of the image's size.

    `widths` are the channels of the levels that are given, those of the output's size and coarser.
    """

    def __init__(self, read: int, channels: Sequence[int]) -> None:
        super().__init__()
        self.widths = tuple(channels[1:])
        self.levels = nn.ModuleList()
        for number, width in enumerate(channels):
            entry = conv_norm_relu(read, width, stride=2)
            self.levels.append(nn.Sequential(entry, conv_norm_relu(width, width)) if number else entry)
            read = width

    def forward(self, images_BCHW: Tensor) -> list[Tensor]:
        """The maps, the finest first."""
        found = []
        for level in self.levels:
            images_BCHW = level(images_BCHW)
            found.append(images_BCHW)
        return found[1:]


class Detector(nn.Module):
    """Images [B, C, H, W], sides multiples of the coarsest level's, to [B, classes + GEOMETRY, H / STRIDE, W / STRIDE].

    Coarse maps are brought to the finer ones and added (Lin et al. 2017, arXiv 1612.03144). The first channels are logits.
    """

    def __init__(self, backbone: PlainBackbone | EfficientNetLite, classes: int, head: int) -> None:
        super().__init__()
        self.backbone = backbone
        used = backbone.widths
        self.narrow = nn.ModuleList(conv_norm_relu(coarse, fine, 1) for fine, coarse in pairwise(used))
        self.smooth = nn.ModuleList(conv_norm_relu(fine, fine) for fine in used[:-1])
        self.head = conv_norm_relu(used[0], head)
        self.out = nn.Conv2d(head, classes + GEOMETRY, 1)
        assert self.out.bias is not None
        nn.init.constant_(self.out.bias[:classes], -math.log(1 / RARE - 1))

    def forward(self, images_BCHW: Tensor) -> Tensor:
        """Logits, sizes and offsets."""
        maps = self.backbone(images_BCHW)
        found = maps[-1]
        for level in reversed(range(len(self.smooth))):
            up = F.interpolate(self.narrow[level](found), scale_factor=2.0, mode="nearest")
            found = self.smooth[level](maps[level] + up)
        scores: Tensor = self.out(self.head(found))
        return scores
