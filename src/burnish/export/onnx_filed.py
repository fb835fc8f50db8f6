"""The model as an ONNX file holds it: its matrices of integers as the float ones they stand for; what to hold a file against."""

from __future__ import annotations

import copy
from collections import Counter
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from burnish.export.onnx_matrix import Matrix, matrix_of
from burnish.models.decoder import Decoder
from burnish.models.encoder import Encoder
from burnish.models.layers import Linear

Model = TypeVar("Model", bound=Decoder | Encoder)


def restored(held: Matrix) -> Tensor:
    """The float32 matrix [O, I] that the integers of a file stand for."""
    values = held.arrays["weight"].astype(np.float32)
    if held.kind is None:
        return torch.from_numpy(values)
    scale = held.arrays["weight_scale"]
    if held.kind.group < 0:
        return torch.from_numpy(values * scale[:, None])
    apart = values.reshape(*scale.shape, -1)
    zero = held.arrays["weight_zero_point"][..., None] if not held.kind.symmetric else 1 << held.kind.bits - 1
    return torch.from_numpy(((apart - np.float32(zero)) * scale[..., None]).reshape(values.shape))


def as_filed(model: Model, words: Matrix | None, every: bool = False) -> Model:
    """The model with float matrices that are those of the file: of groups of integers, and of the vocabulary as `words`.

    Modules whose inputs are rounded too stay what they are, unless `every` one shall be float. The model is left alone.
    """
    made = copy.copy(model)
    made._modules = dict(model._modules)
    made.layers = nn.ModuleList(_filed(f"layers.{i}", layer, every) for i, layer in enumerate(model.layers))
    if words is not None and isinstance(made, Decoder):
        made.head = _linear(words, None)
        if made.shape.tied:
            made.embed = copy.copy(made.embed)
            made.embed._parameters = dict(made.head._parameters)
    made.eval()
    return made


def integers_in(model: nn.Module) -> set[int]:
    """Bits of the matrices of integers that a model holds."""
    found = [module for module in model.modules() if hasattr(module, "stored")]
    return {kind.bits for module in found if (kind := matrix_of("", module).kind) is not None}


def kind_label(model: nn.Module, words: Matrix | None) -> str:
    """How many matrices a file has of which kind, for people."""
    held = [
        module for name, module in model.named_modules() if isinstance(module, nn.Linear) or hasattr(module, "stored")
    ]
    kinds = [matrix_of("", module).kind for module in held]
    counts = Counter("float32" if kind is None else kind.label for kind in kinds)
    own = [] if words is None or words.kind is None else [f"vocabulary {words.kind.label}"]
    return ", ".join([*(f"{count} {label}" for label, count in counts.items()), *own])


def _filed(name: str, module: nn.Module, every: bool) -> nn.Module:
    if hasattr(module, "stored"):
        held = matrix_of(name, module)
        bias = getattr(module, "bias", None)
        return module if held.kind is None or (held.kind.inputs and not every) else _linear(held, bias)
    if not any(hasattr(child, "stored") for child in module.modules()):
        return module
    made = copy.copy(module)
    made._modules = {n: child and _filed(f"{name}.{n}", child, every) for n, child in module._modules.items()}
    return made


def _linear(held: Matrix, bias: Tensor | None) -> Linear:
    out, width = held.shape
    with torch.device("meta"):
        made = Linear(width, out, bias is not None)
    made.weight = nn.Parameter(restored(held), requires_grad=False)
    if bias is not None:
        made.bias = nn.Parameter(bias.detach().float(), requires_grad=False)
    return made
