"""Linear layers in 8-bit integers: a matrix with one scale an output, inputs with one scale in all or one a token.

y = (q_x q_W^T) s_x s_W + b, q_W in -127 .. 127 and q_x in -128 .. 127. The sums of products are exact: integers are multiplied as
float32, which holds every integer up to 2^24, in pieces of so many inputs that no sum can leave it. So a row's result is the same
bit for bit beside whatever other rows, and that of any other exact integer product.

Letters: O outputs, I inputs.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from burnish.weight_format import IntWeights

LOWEST, HIGHEST = -128, 127
STEPS = 127  # of a weight's magnitude: both signs alike
EXACT = 2**24 // (STEPS * -LOWEST)  # inputs whose products cannot sum to more than float32 holds exactly


def output_scales(weight_OI: Tensor) -> Tensor:
    """max |w| / 127 of each output, [O, 1] float32; 1 for an output of zeros."""
    scale_O1 = weight_OI.float().abs().amax(1, keepdim=True) / STEPS
    return torch.where(scale_O1 > 0, scale_O1.clamp(min=torch.finfo(torch.float32).tiny), 1.0)


def token_scales(x: Tensor) -> Tensor:
    """max |x| / 127 of each token, [.., 1] float32; 1 for a token of zeros."""
    scale = x.float().abs().amax(-1, keepdim=True) / STEPS
    return torch.where(scale > 0, scale.clamp(min=torch.finfo(torch.float32).tiny), 1.0)


def rounded(x: Tensor, scale: Tensor) -> Tensor:
    """x / scale to the nearest integer, halves to even, in -128 .. 127; as float32."""
    return (x.float() / scale).round_().clamp_(LOWEST, HIGHEST)


def integer_product(x: Tensor, weight_OI: Tensor) -> Tensor:
    """Exact x @ weight^T of integers: x [.., I] float32, weight int8 [O, I] -> [.., O] float32, rounded once at the end."""
    weight = weight_OI.float()
    if x.shape[-1] <= EXACT:
        return F.linear(x, weight)
    pieces = zip(x.split(EXACT, -1), weight.split(EXACT, 1), strict=True)
    total = sum(F.linear(part, own).to(torch.int32) for part, own in pieces)
    assert isinstance(total, Tensor)
    return total.float()


class Int8Linear(nn.Module):
    """y = x W^T + b in integers; `scheme` says how. Tensors: `weight` int8 [O, I], `weight_scale` [O, 1], `input_scale` [1] or None
    (a scale for each token as it comes), `bias` [O] or None."""

    weight: Tensor
    weight_scale: Tensor
    input_scale: Tensor | None

    def __init__(
        self,
        scheme: IntWeights,
        weight: Tensor,
        weight_scale: Tensor,
        input_scale: Tensor | None,
        bias: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.scheme = scheme
        self.out_features, self.in_features = weight.shape
        self.register_buffer("weight", weight.contiguous())
        self.register_buffer("weight_scale", weight_scale.contiguous())
        self.register_buffer("input_scale", input_scale)
        self.bias = None if bias is None else nn.Parameter(bias.detach(), requires_grad=False)

    def dequantized(self) -> Tensor:
        """The matrix that the integers stand for, rounded to the scale's format as other readers do; float32 [O, I]."""
        return (self.weight.float() * self.weight_scale.float()).to(self.weight_scale.dtype).float()

    def stored(self, parts: int = 1) -> list[dict[str, Tensor]]:
        """The tensors of a file by their endings, for each of `parts` equal cuts of the outputs."""
        cuts = zip(self.weight.chunk(parts), self.weight_scale.chunk(parts), strict=True)
        inputs = {} if self.input_scale is None else {"input_scale": self.input_scale}
        return [{"weight": own, "weight_scale": scale} | inputs for own, scale in cuts]

    def input_steps(self, x: Tensor) -> Tensor:
        """The scale that inputs are divided by: [1], or one a token [.., 1]."""
        return token_scales(x) if self.input_scale is None else self.input_scale.float()

    def forward(self, x: Tensor) -> Tensor:
        step = self.input_steps(x)
        made = integer_product(rounded(x, step), self.weight)
        made = made.mul_(step).mul_(self.weight_scale.float().squeeze(1))
        return (made if self.bias is None else made.add_(self.bias.float())).to(x.dtype)

    def extra_repr(self) -> str:
        """For printing a model."""
        return f"{self.in_features}, {self.out_features}, {self.scheme.label}"


def of_weight(scheme: IntWeights, weight_OI: Tensor, largest: float | None, bias: Tensor | None = None) -> Int8Linear:
    """A matrix rounded to nearest. `largest`: the input magnitude that 127 stands for; None: one for each token.

    Scales are rounded to the scheme's format first, so that integers fit what a file holds.
    """
    dtype: torch.dtype = getattr(torch, scheme.dtype)
    scale_O1 = output_scales(weight_OI).to(dtype)
    values = (weight_OI.float() / scale_O1.float()).round_().clamp_(-STEPS, STEPS).to(torch.int8)
    inputs = None
    if largest is not None:
        inputs = torch.tensor([largest / STEPS if largest > 0 else 1.0], device=weight_OI.device).to(dtype)
    return Int8Linear(scheme, values, scale_O1, inputs, bias)


def from_file(scheme: IntWeights, parts: list[dict[str, Tensor]], bias: Tensor | None) -> Int8Linear:
    """The module of what `stored` gave: one part, or one for each cut of the outputs."""
    values, scales = (torch.cat([part[name] for part in parts]) for name in ("weight", "weight_scale"))
    return Int8Linear(scheme, values, scales, parts[0].get("input_scale"), bias)
