"""Augmentation of a whole batch at once: one resampling for all that moves, then changes of value; a function of a generator."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from burnish.vision.sections import Augment

FIELD = 4  # points along each side that the bias field is drawn at


def augmented(images: Tensor, labels: Tensor, settings: Augment, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Images [B, C, *spatial] and labels [B, *spatial], each varied by itself."""
    images, labels = moved(images, labels, settings, generator)
    return revalued(images, settings, generator), labels


def _uniform(shape: tuple[int, ...], amount: float, generator: torch.Generator) -> Tensor:
    return (torch.rand(shape, generator=generator) * 2 - 1) * amount


def moved(images: Tensor, labels: Tensor, settings: Augment, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Turned, scaled, shifted and flipped: images by linear interpolation, labels by the nearest voxel."""
    count, dims = len(images), images.ndim - 2
    sizes = torch.tensor(images.shape[:1:-1], dtype=torch.float32)  # as affine_grid counts axes: the last one first
    matrix = rotations(count, dims, settings.rotate, generator)
    matrix = matrix * (1 + _uniform((count, 1, dims), settings.scale, generator))
    for axis, flips in enumerate(settings.flip):
        if flips:
            sign = torch.randint(0, 2, (count, 1), generator=generator) * 2 - 1
            matrix[:, :, dims - 1 - axis] *= sign
    matrix = matrix * sizes / sizes[:, None]  # a turn is one of voxels, not of shares of the sides
    shift = _uniform((count, dims, 1), settings.shift * 2, generator)
    grid = F.affine_grid(torch.cat((matrix, shift), dim=2), list(images.shape), align_corners=False)
    images = F.grid_sample(images, grid, padding_mode="border", align_corners=False)
    found = F.grid_sample(labels[:, None].float(), grid, mode="nearest", padding_mode="zeros", align_corners=False)
    return images, found[:, 0].long()


def rotations(count: int, dims: int, degrees: float, generator: torch.Generator) -> Tensor:
    """Rotation matrices [B, dims, dims] by up to `degrees` around each axis."""
    made = torch.eye(dims).repeat(count, 1, 1)
    for first, second in ((0, 1),) if dims == 2 else ((0, 1), (0, 2), (1, 2)):
        angle = torch.deg2rad(_uniform((count,), degrees, generator))
        turn = torch.eye(dims).repeat(count, 1, 1)
        turn[:, first, first] = turn[:, second, second] = angle.cos()
        turn[:, first, second], turn[:, second, first] = -angle.sin(), angle.sin()
        made = made @ turn
    return made


def revalued(images: Tensor, settings: Augment, generator: torch.Generator) -> Tensor:
    """Other brightness, contrast, gamma, a slow field, smoothing and noise. Amounts are shares of each image's range."""
    count, dims = len(images), images.ndim - 2
    each = (count, 1, *(1,) * dims)
    low, high = (
        images.amin(dim=tuple(range(1, dims + 2)), keepdim=True),
        images.amax(dim=tuple(range(1, dims + 2)), keepdim=True),
    )
    span = (high - low).clamp_min(1e-6)
    found = ((images - low) / span).clamp(0, 1)
    if settings.gamma:
        found = found ** torch.exp(_uniform(each, settings.gamma, generator) * 1.5)
    if settings.bias:
        field = _uniform((count, 1, *(FIELD,) * dims), settings.bias, generator)
        mode = "bilinear" if dims == 2 else "trilinear"
        found = found * (1 + F.interpolate(field, images.shape[2:], mode=mode, align_corners=True))
    found = (found - 0.5) * (1 + _uniform(each, settings.contrast, generator)) + 0.5
    found = found + _uniform(each, settings.brightness, generator)
    if settings.blur:
        pool = F.avg_pool2d if dims == 2 else F.avg_pool3d
        smooth = pool(found, 3, stride=1, padding=1, count_include_pad=False)
        share = (torch.rand(each, generator=generator) < settings.blur) * torch.rand(each, generator=generator)
        found = torch.lerp(found, smooth, share)
    if settings.noise:
        level = torch.rand(each, generator=generator) * settings.noise
        found = found + torch.randn(found.shape, generator=generator) * level
    return found * span + low
