"""The parts of a layer that look at one position at a time, written so that each saves the least for the backward pass.

Shape letters: H hidden size, F feed-forward size. "Saved:" in a docstring counts the elements a token kept for backward.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


class Linear(nn.Linear):
    """nn.Linear without a first fill, and without bias unless asked: `initialise` draws every weight.

    Saved: the input, in_features a token; layers that read the same input share one copy.
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = False) -> None:
        super().__init__(in_features, out_features, bias=bias)

    product = staticmethod(F.linear)  # an instance may have another: what makes x W^T + b

    def reset_parameters(self) -> None:
        """Leave the memory unwritten."""

    def forward(self, x: Tensor) -> Tensor:
        # Beside 16-bit products a bias, like every vector, stays in float32.
        return self.product(x, self.weight, None if self.bias is None else self.bias.to(x.dtype))


class Embedding(nn.Embedding):
    """nn.Embedding without a first fill. Saved: the token ids, one int64 a token."""

    def reset_parameters(self) -> None:
        """Leave the memory unwritten."""


class _RMSNorm(torch.autograd.Function):
    """y = w * x * r with r = (mean(x^2) + eps)^(-1/2); statistics of 16-bit input are taken in float32."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        dtype = torch.promote_types(x.dtype, torch.float32)
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=dtype)
        rstd = norm.square_().div_(x.shape[-1]).add_(eps).rsqrt_()
        ctx.save_for_backward(x, weight, rstd)
        # Rounded once, at the end: beside 16-bit x the weight may be float32.
        return (x * rstd).mul_(weight).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        # With g = grad * w:  dx = r * g - x * r^3 / H * sum(g * x),  dw = sum over tokens of grad * x * r.
        x, weight, rstd = ctx.saved_tensors
        dtype = rstd.dtype
        product = grad.to(dtype) * x  # shared by both gradients
        grad_weight = grad_x = None
        if ctx.needs_input_grad[1]:
            rows = product.flatten(0, -2)
            grad_weight = (rstd.flatten() @ rows).to(weight.dtype)
        if ctx.needs_input_grad[0]:
            along = (product @ weight.to(dtype)).unsqueeze(-1)
            shrink = along.mul_(rstd.pow(3)).div_(-x.shape[-1])
            grad_x = (grad.to(dtype) * weight).mul_(rstd).addcmul_(x, shrink.to(dtype)).to(x.dtype)
        return grad_x, grad_weight, None


class RMSNorm(nn.Module):
    """Root-mean-square norm (Zhang and Sennrich 2019, equation 4): x [.., H] -> [.., H] of the same dtype.

    Saved: H elements (x itself, not a copy) and one of the statistic (float32; float64 for float64 input).
    """

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return _RMSNorm.apply(x, self.weight, self.eps)


class _LayerNorm(torch.autograd.Function):
    """y = w * (x - mean) * r + b with r = (variance + eps)^(-1/2); statistics of 16-bit input are taken in float32."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        dtype = torch.promote_types(x.dtype, torch.float32)
        variance, mean = torch.var_mean(x.to(dtype), dim=-1, correction=0, keepdim=True)
        rstd = variance.add_(eps).rsqrt_()
        ctx.save_for_backward(x, weight, mean, rstd)
        return (x - mean).mul_(rstd).mul_(weight).add_(bias).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        # With h = (x - mean) * r and g = grad * w:  dx = r * (g - mean(g) - h * mean(g * h)).
        x, weight, mean, rstd = ctx.saved_tensors
        wide = grad.to(rstd.dtype)
        unit = (x - mean).mul_(rstd)
        product = wide * unit
        rows = tuple(range(x.dim() - 1))
        grad_weight, grad_bias = product.sum(rows).to(weight.dtype), wide.sum(rows).to(weight.dtype)
        through = wide * weight
        shared = product.mul_(weight).mean(-1, keepdim=True)
        grad_x = through.sub_(through.mean(-1, keepdim=True)).sub_(unit.mul_(shared)).mul_(rstd)
        return grad_x.to(x.dtype), grad_weight, grad_bias, None


class LayerNorm(nn.Module):
    """Layer norm (Ba et al. 2016, equation 4, over one position): x [.., H] -> [.., H] of the same dtype.

    Saved: H elements (x itself, not a copy) and two statistics (float32; float64 for float64 input).
    """

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.bias = nn.Parameter(torch.zeros(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return _LayerNorm.apply(x, self.weight, self.bias, self.eps)


class _GatedSilu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        return F.silu(gate).mul_(up)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        gate, up = ctx.saved_tensors
        return torch.ops.aten.silu_backward(grad * up, gate), F.silu(gate).mul_(grad)


def gated_silu(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) * up (SwiGLU, Shazeer 2020, equation 6), both [.., F].

    Saved: 2 F elements (gate and up themselves); silu(gate) is computed again in the backward pass.
    """
    return _GatedSilu.apply(gate, up)


def gelu(x: Tensor) -> Tensor:
    """x * P(X <= x) for a standard normal X (Hendrycks and Gimpel 2016). Saved: F elements (x itself)."""
    return F.gelu(x)


def gelu_tanh(x: Tensor) -> Tensor:
    """gelu by its tanh form (Hendrycks and Gimpel 2016, section 2), as GPT-2 has it. Saved: F elements (x itself)."""
    return F.gelu(x, approximate="tanh")
