"""Does an ONNX file say what the model says? Open it in onnxruntime and compare scores, with the cache and without.

What both read: rows of unequal length, padded on the right, then single tokens after them.
"""

from __future__ import annotations

import copy
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from burnish.export.onnx_matrix import Matrix, matrix_of
from burnish.export.onnx_session import Floats, OnnxDecoder, opened
from burnish.models.cache import KVCache
from burnish.models.decoder import Decoder
from burnish.models.encoder import Encoder, first_positions
from burnish.models.layers import Linear

FLOATS, INTEGERS = (
    1e-4,
    1e-3,
)  # of the largest score: rounding in another order; that, and of another number's last digit
LENGTHS, STEPS = (19, 7, 12), 3
Model = TypeVar("Model", bound=Decoder | Encoder)


@dataclass(frozen=True)
class Agreement:
    """How far a file's scores are from a model's: `difference` at most, of scores of up to `largest`; `same`: the share of
    positions whose likeliest token is the same."""

    difference: float
    largest: float
    same: float

    def within(self, allowed: float) -> bool:
        """Whether no score is off by more than this share of the largest one, or of 1 where all are smaller."""
        return self.difference <= allowed * max(1.0, self.largest)  # a NaN fails

    def __str__(self) -> str:
        return f"{self.difference:.2g} at most, of scores up to {self.largest:.3g}"


def agreement(pairs: list[tuple[Floats, Floats]]) -> Agreement:
    """Of scores [.., V], the file's and the model's."""
    difference = max(float(np.abs(one - two).max()) for one, two in pairs)
    largest = max(float(np.abs(two).max()) for _, two in pairs)
    same = np.concatenate([(one.argmax(-1) == two.argmax(-1)).ravel() for one, two in pairs])
    return Agreement(
        difference if all(np.isfinite(one).all() for one, _ in pairs) else np.inf, largest, same.mean().item()
    )


@torch.inference_mode()
def check_decoder(path: Path, model: Decoder) -> Agreement:
    """A decoder's file beside the model: prompts of unequal length read at once, then tokens one by one from the cache."""
    rows, room = len(LENGTHS), model.shape.max_positions
    length = min(max(LENGTHS), max(room - STEPS, 1))
    draw = torch.Generator().manual_seed(0)
    ids_BS = torch.randint(model.shape.vocab, (rows, length), generator=draw)
    mask_BS = torch.arange(length) < torch.tensor(LENGTHS)[:, None]
    file, cache = OnnxDecoder.of(path), KVCache(model.shape, rows, length + STEPS)
    pairs, mask = [], mask_BS
    for _ in range(1 + min(STEPS, room - length)):
        wanted: Tensor = model.logits(model(ids_BS, mask_BS=mask, cache=cache))
        found = file.read(ids_BS.numpy(), mask.long().numpy())
        keep = mask.numpy()
        pairs.append((found[keep], wanted.float().numpy()[keep]))
        ids_BS = torch.randint(model.shape.vocab, (rows, 1), generator=draw)
        mask = torch.ones_like(ids_BS, dtype=torch.bool)
    return agreement(pairs)


@torch.inference_mode()
def check_encoder(path: Path, model: Encoder) -> Agreement:
    """An encoder's file beside the model: hidden states of the real tokens, and scores where it has a head."""
    length = min(max(LENGTHS), model.shape.table - model.shape.offset)
    draw = torch.Generator().manual_seed(0)
    sizes = (len(LENGTHS), length)
    ids_BS, types_BS = (torch.randint(high, sizes, generator=draw) for high in (model.shape.vocab, model.shape.types))
    mask_BS = torch.arange(length) < torch.tensor(LENGTHS)[:, None]
    given = {"input_ids": ids_BS, "attention_mask": mask_BS.long(), "token_type_ids": types_BS}
    found = opened(path).run(None, {name: tensor.numpy() for name, tensor in given.items()})
    hidden = model(ids_BS, mask_BS=mask_BS, types_BS=types_BS)
    keep = mask_BS.numpy()
    pairs = [(found[0][keep], hidden.numpy()[keep])]
    if model.head is not None:
        scores = model.logits(hidden, first_positions(ids_BS, mask_BS=mask_BS)).numpy()
        own = slice(None) if model.shape.head == "sequence" else keep
        pairs.append((found[1][own], scores[own]))
    return agreement(pairs)


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
    return made.eval()


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
