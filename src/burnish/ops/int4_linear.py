"""Linear layers whose matrix is kept as packed integers of 4 bits: [out, in] in groups of inputs, one scale each.

The packing is that of compressed-tensors (`pack-quantized`): eight integers a word, the first in the lowest bits, each
stored plus 8; zero points likewise along the outputs. So a file's tensors are a module's, without a copy.

A product turns the matrix back to floating point first, each time. That is most of the time of a single row, about ten times
a float product on a CPU, and little of many rows'. A float copy that is kept would take eight times what the integers do.
torch's own product of packed integers on a CPU (`_weight_int4pack_mm_for_cpu`, torch 2.13) is fast for bfloat16 inputs alone,
and then off by 4e-3 of the largest output, so that it would not be the model that was judged; for float32 inputs it takes as
long as this for a row and many times as long for 64. Decoding fast is for runners that have such products (`burnish.serve`).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from burnish.weight_format import IntWeights

LOWEST, HIGHEST = -8, 7
PER_WORD = 8
OFFSET = 8  # integers are stored plus this


class Integers(NamedTuple):
    """A matrix of integers in -8 .. 7: `values` int8 [out, in], `scale` [out, G], `zero` int8 [out, G] or None (zero)."""

    values: Tensor
    scale: Tensor
    zero: Tensor | None


def pack(values: Tensor) -> Tensor:
    """int8 [rows, n] of -8 .. 7 -> int32 [rows, ceil(n / 8)]; what fills the last word is 0 as stored."""
    rows, count = values.shape
    nibbles = F.pad((values.to(torch.int16) + OFFSET).to(torch.uint8), (0, -count % PER_WORD))
    # Laid out anew: of a single row or column the strides may be any.
    return (nibbles[:, ::2] | (nibbles[:, 1::2] << 4)).reshape(-1).clone().view(torch.int32).view(rows, -1)


def unpack(packed: Tensor, count: int) -> Tensor:
    """The first `count` integers of each row of `pack`'s result: int8 [rows, count]."""
    halves = packed.reshape(-1).clone().view(torch.uint8).view(len(packed), -1)
    nibbles = torch.stack((halves & 15, halves >> 4), dim=-1).flatten(1)[:, :count]
    return nibbles.view(torch.int8) - OFFSET


def dequantize(own: Integers) -> Tensor:
    """(q - zero) * scale, rounded to the scale's format as other readers do; float32 [out, in]."""
    out, groups = own.scale.shape
    values = own.values.float().view(out, groups, -1)
    if own.zero is not None:
        values = values - own.zero.float().unsqueeze(-1)
    return values.mul_(own.scale.float().unsqueeze(-1)).to(own.scale.dtype).float().view(out, -1)


class Int4Linear(nn.Module):
    """y = x W^T + b with W in integers; `scheme` says how. Tensors: `weight_packed` int32 [out, ceil(in / 8)],
    `weight_scale` [out, G], `weight_zero_point` int32 [ceil(out / 8), G] or None, `bias` [out] or None."""

    weight_packed: Tensor
    weight_scale: Tensor
    weight_zero_point: Tensor | None

    def __init__(self, scheme: IntWeights, in_features: int, own: Integers, bias: Tensor | None = None) -> None:
        super().__init__()
        self.scheme, self.in_features, self.out_features = scheme, in_features, len(own.values)
        self.register_buffer("weight_packed", pack(own.values))
        self.register_buffer("weight_scale", own.scale.contiguous())
        zero = None if own.zero is None else pack(own.zero.t()).t().contiguous()
        self.register_buffer("weight_zero_point", zero)
        self.bias = None if bias is None else nn.Parameter(bias.detach(), requires_grad=False)

    @property
    def integers(self) -> Integers:
        """The matrix unpacked."""
        zero = self.weight_zero_point
        own = None if zero is None else unpack(zero.t(), self.out_features).t().contiguous()
        return Integers(unpack(self.weight_packed, self.in_features), self.weight_scale, own)

    def dequantized(self) -> Tensor:
        """The matrix that the integers stand for: float32 [out, in]."""
        return dequantize(self.integers)

    def stored(self, parts: int = 1) -> list[dict[str, Tensor]]:
        """The tensors of a file by their endings, for each of `parts` equal cuts of the outputs (experts)."""
        cuts = [self.integers] if parts == 1 else _cut(self.integers, parts)
        return [self._of_file(own) for own in cuts]

    def _of_file(self, own: Integers) -> dict[str, Tensor]:
        found = {"weight_packed": pack(own.values), "weight_scale": own.scale}
        if own.zero is not None:
            found["weight_zero_point"] = pack(own.zero.t()).t().contiguous()
        return found | {"weight_shape": torch.tensor([len(own.values), self.in_features])}

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.dequantized().to(x.dtype), None if self.bias is None else self.bias.to(x.dtype))

    def extra_repr(self) -> str:
        """For printing a model."""
        return f"{self.in_features}, {self.out_features}, {self.scheme.label}"


def _cut(own: Integers, parts: int) -> list[Integers]:
    zeros = [None] * parts if own.zero is None else own.zero.chunk(parts)
    cuts = zip(own.values.chunk(parts), own.scale.chunk(parts), zeros, strict=True)
    return [Integers(*cut) for cut in cuts]


class Int4Grouped(Int4Linear):
    """The matrices of many experts, one below another: y = x W_e^T for rows ordered by expert, `counts[e]` rows each."""

    def forward(self, x: Tensor, counts: list[int] | None = None) -> Tensor:
        assert counts is not None
        parts = _cut(self.integers, len(counts))
        made = [rows @ dequantize(own).to(x.dtype).t() for rows, own in zip(x.split(counts), parts, strict=True)]
        return torch.cat(made)


def from_file(scheme: IntWeights, parts: list[dict[str, Tensor]], bias: Tensor | None, grouped: bool) -> Int4Linear:
    """The module of what `stored` gave: one part, or one for each cut of the outputs."""
    found = []
    for part in parts:
        out, inputs = map(int, part["weight_shape"])
        packed = part.get("weight_zero_point")
        zero = None if packed is None else unpack(packed.t(), out).t()
        found.append(Integers(unpack(part["weight_packed"], inputs), part["weight_scale"], zero))
    zeros = [own.zero for own in found if own.zero is not None]
    whole = Integers(
        torch.cat([own.values for own in found]),
        torch.cat([own.scale for own in found]),
        torch.cat(zeros) if zeros else None,
    )
    return (Int4Grouped if grouped else Int4Linear)(scheme, inputs, whole, bias)
