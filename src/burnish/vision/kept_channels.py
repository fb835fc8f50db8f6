"""Kept channels: what a pruned network keeps of the one it was cut from, as a table; saved as JSON, applied without pickle.

The network is built anew from its section, cut by the table, and then its state dict fits.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from burnish.errors import UserError
from burnish.records import write_text

FORMAT = 1
# What a module says of its own sizes -> the parameter and dimension it follows.
SIZES = {
    "num_features": ("weight", 0),
    "num_channels": ("weight", 0),
    "num_parameters": ("weight", 0),
    "out_features": ("weight", 0),
    "in_features": ("weight", 1),
}


@dataclass(frozen=True)
class Kept:
    """`layers`: layer -> (channels it had, channels it keeps). `tensors`: parameter or buffer -> dimension -> (size it had,
    indices it keeps). `reached`: what the target asked for and what was got, as a report shows it."""

    layers: dict[str, tuple[int, tuple[int, ...]]]
    tensors: dict[str, dict[int, tuple[int, tuple[int, ...]]]]
    reached: str = ""

    def save(self, path: Path) -> None:
        """Write the table as JSON, whole or not at all."""
        tensors = {name: {str(dim): one for dim, one in dims.items()} for name, dims in self.tensors.items()}
        content = {"format": FORMAT, "reached": self.reached, "layers": self.layers, "tensors": tensors}
        write_text(path, json.dumps(content) + "\n")

    @classmethod
    def load(cls, path: Path) -> Kept:
        """Read a table. Raises UserError naming the file for what is none."""
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            if content["format"] != FORMAT:
                raise ValueError(f"format {content['format']}")
            layers = {str(name): _entry(one) for name, one in content["layers"].items()}
            tensors = {
                str(name): {int(dim): _entry(one) for dim, one in dims.items()}
                for name, dims in content["tensors"].items()
            }
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{path}: no table of kept channels ({error}); write one with Kept.save") from None
        return cls(layers, tensors, str(content.get("reached", "")))


def _entry(one: Any) -> tuple[int, tuple[int, ...]]:
    width, kept = int(one[0]), tuple(int(index) for index in one[1])
    if not kept or list(kept) != sorted(set(kept)) or kept[0] < 0 or kept[-1] >= width:
        raise ValueError(f"kept channels {list(kept)[:4]} of {width}")
    return width, kept


def apply(model: nn.Module, kept: Kept) -> nn.Module:
    """Cut a network in place by the table; what several layers share is cut once and stays shared.

    Raises UserError, before anything is cut, where the table is another network's.
    """
    held = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    for name, dims in kept.tensors.items():
        for dim, (size, _) in dims.items():
            if name not in held or held[name].dim() <= dim or held[name].shape[dim] != size:
                found = list(held[name].shape) if name in held else "absent"
                raise UserError(
                    f"kept channels: {name} is {found}, the table cuts {size} along {dim}: another network's"
                )
    cut = {id(held[name]): _cut(held[name], dims) for name, dims in kept.tensors.items()}
    for module in model.modules():
        touched = False
        stores: tuple[dict[str, Any], ...] = (module._parameters, module._buffers)
        for store in stores:
            for name, tensor in store.items():
                if tensor is not None and id(tensor) in cut:
                    store[name], touched = cut[id(tensor)], True
        if touched:
            _resize(module)
    _rename_plain_norms(model)
    return model


def _rename_plain_norms(model: nn.Module) -> None:
    """Tell instance norms without weights the width of the convolution before them: all they do with it is warn."""
    width = None
    for module in model.modules():
        if isinstance(module, nn.modules.conv._ConvNd):
            width = module.out_channels
        elif isinstance(module, nn.modules.instancenorm._InstanceNorm) and not module.affine and width is not None:
            module.num_features = width


def _cut(tensor: Tensor, dims: Mapping[int, tuple[int, tuple[int, ...]]]) -> Tensor:
    data = tensor.detach()
    for dim, (_, indices) in dims.items():
        data = data.index_select(dim, torch.tensor(indices, device=tensor.device))
    return nn.Parameter(data, requires_grad=tensor.requires_grad) if isinstance(tensor, nn.Parameter) else data


def _resize(module: Any) -> None:
    """What the module says of its sizes, to what its weight has."""
    weight = getattr(module, "weight", None)
    if weight is None:
        return
    if isinstance(module, nn.modules.conv._ConvNd):
        first, second = weight.shape[:2]
        if module.groups > 1:
            module.groups = module.in_channels = module.out_channels = first
        else:
            module.in_channels, module.out_channels = (first, second) if module.transposed else (second, first)
        return
    for name, (_, dim) in SIZES.items():
        if hasattr(module, name) and weight.dim() > dim:
            setattr(module, name, weight.shape[dim])
