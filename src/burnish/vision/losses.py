"""Losses: the loss that a kind of network learns by, and what it takes beside the images."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from burnish.vision.box_targets import EXTRA
from burnish.vision.boxes import STRIDE
from burnish.vision.detection_loss import DetectionLoss
from burnish.vision.sections import Network
from burnish.vision.segmentation_loss import SegmentationLoss


def loss_of(network: Network, model: nn.Module) -> nn.Module:
    """Network and loss as one module: what a batch's `tensors` are the arguments of."""
    return DetectionLoss(model) if network.detects else SegmentationLoss(model)


def blank_targets(network: Network, shape: tuple[int, ...]) -> Tensor:
    """Targets of nothing for images of `shape` [B, C, *spatial], as a batch has them."""
    if not network.detects:
        return torch.zeros((shape[0], *shape[2:]), dtype=torch.long)
    return torch.zeros((shape[0], network.out_channels + EXTRA, *(side // STRIDE for side in shape[2:])))
