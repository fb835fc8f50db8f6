"""The parts of a decoder layer, written so that each saves the least for the backward pass.

Shape letters: B rows, S positions, L keys (cached and new), H hidden size, F feed-forward size, N query heads,
K key/value heads, D size of one head. "Saved:" in a docstring counts the elements a token kept for the backward pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


class Linear(nn.Linear):
    """nn.Linear without bias and without a first fill: `Decoder.initialise` draws every weight.

    Saved: the input, in_features a token; layers that read the same input share one copy.
    """

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__(in_features, out_features, bias=False)

    def reset_parameters(self) -> None:
        """Leave the memory unwritten."""


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


class Rotary(NamedTuple):
    """Cosine and sine of every position's angles, each [B or 1, S, 1, D/2], shared by all layers."""

    cos: Tensor
    sin: Tensor


def rotary_angles(positions_BS: Tensor, head_dim: int, theta: float, dtype: torch.dtype) -> Rotary:
    """Angles position * theta^(-2i/D) (Su et al. 2021, equation 15), made in float32 and then cast to `dtype`.

    Computed at each forward, so that no buffer has to survive a meta-device build.
    """
    wide = torch.promote_types(dtype, torch.float32)
    exponent = torch.arange(0, head_dim, 2, dtype=wide, device=positions_BS.device) / head_dim
    angles = positions_BS[:, :, None, None].to(wide) * theta**-exponent
    return Rotary(angles.cos().to(dtype), angles.sin().to(dtype))


def _turn(x_BSND: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x_BSND.chunk(2, dim=-1)
    halves = (first * cos).addcmul_(second, -sin), (second * cos).addcmul_(first, sin)
    return torch.cat(halves, dim=-1).to(x_BSND.dtype)


class _Rotate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_BSND: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return _turn(x_BSND, cos, sin)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        return _turn(grad, cos, -sin), None, None


def rotate(x_BSND: Tensor, rotary: Rotary) -> Tensor:
    """Rotary embedding in Hugging Face's layout: element i turns with element i + D/2.

    Saved: nothing of its own. The angles are held once for all layers: D elements a token, or a position if rows share.
    """
    return _Rotate.apply(x_BSND, rotary.cos, rotary.sin)


class Run(NamedTuple):
    """A rectangle of one batch: rows [row, row_end), positions [start, end), attended to causally and alone."""

    row: int
    row_end: int
    start: int
    end: int


@dataclass(frozen=True)
class Pattern:
    """Which keys each query may see. Without a mask and runs: all earlier ones (`causal`) or all there are."""

    causal: bool = True
    mask: Tensor | None = None  # bool [B, 1, S, L], True = visible; only padding and a used cache need one
    runs: tuple[Run, ...] = ()


def packed_runs(segments: tuple[tuple[int, ...], ...], length: int) -> tuple[Run, ...]:
    """Cut packed rows into runs: neighbouring rows that are one piece share a run, other rows give one run a piece.

    Raises ValueError when the pieces of a row do not sum to `length`.
    """
    runs: list[Run] = []
    for row, pieces in enumerate(segments):
        if sum(pieces) != length or min(pieces, default=0) < 1:
            raise ValueError(f"segments: row {row} is {pieces}; positive lengths that sum to {length} are needed")
        if len(pieces) == 1 and runs and runs[-1].row_end == row and runs[-1].end - runs[-1].start == length:
            runs[-1] = runs[-1]._replace(row_end=row + 1)
            continue
        start = 0
        for piece in pieces:
            runs.append(Run(row, row + 1, start, start + piece))
            start += piece
    return tuple(runs)


def attend(q_BSND: Tensor, k_BLKD: Tensor, v_BLKD: Tensor, pattern: Pattern) -> Tensor:
    """Softmax attention with grouped key/value heads: query head n reads key head n // (N / K). Returns [B, S, N, D].

    Saved: q, k, v, output: (2 N + 2 K) D elements, and N logs of softmax sums (float32; float64 for float64 input).
    Several runs are joined, which keeps their outputs once more: N D elements. Nothing is S x S unless a mask is given.
    """
    q, k, v = q_BSND.transpose(1, 2), k_BLKD.transpose(1, 2), v_BLKD.transpose(1, 2)
    if len(pattern.runs) <= 1:
        causal = pattern.causal and pattern.mask is None
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=pattern.mask, is_causal=causal, enable_gqa=True)
        return out.transpose(1, 2)
    pieces: list[Tensor] = []
    for row, row_end, start, end in pattern.runs:
        q_part, k_part, v_part = (x[row:row_end, :, start:end] for x in (q, k, v))
        out = F.scaled_dot_product_attention(q_part, k_part, v_part, is_causal=True, enable_gqa=True)
        pieces.append(out.transpose(1, 2).flatten(0, 1))
    return torch.cat(pieces).view(q_BSND.shape)


def reference_attention(q_BSND: Tensor, k_BSKD: Tensor, v_BSKD: Tensor) -> Tensor:
    """Causal attention spelled out in float32 (softmax(q k^T / sqrt(D)) v), to judge the fast path by."""
    q, k, v = (x.float().transpose(1, 2) for x in (q_BSND, k_BSKD, v_BSKD))
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
    return (scores.masked_fill(future, float("-inf")).softmax(-1) @ v).transpose(1, 2)


def check_attention(device: torch.device | str, dtype: torch.dtype) -> float:
    """Compare the attention this device really runs with `reference_attention`; a few milliseconds.

    Returns the largest difference, outputs and gradients alike. Raises RuntimeError when it exceeds what rounding
    explains: a backend that answers zeros or ignores the causal limit must stop a run at its start.
    """
    draw = torch.Generator().manual_seed(0)
    shapes = ((2, 33, 4, 32), (2, 33, 2, 32), (2, 33, 2, 32))
    with torch.enable_grad():
        q, k, v = inputs = [torch.randn(s, generator=draw).to(device, dtype).requires_grad_() for s in shapes]
        weight = torch.randn(shapes[0], generator=draw).to(device)
        found = attend(q, k, v, Pattern())
        wanted = reference_attention(q, k, v)
        found_grads = torch.autograd.grad((found * weight).sum(), inputs)
        wanted_grads = torch.autograd.grad((wanted * weight).sum(), inputs)
    pairs = zip((found, *found_grads), (wanted, *wanted_grads), strict=True)
    worst = torch.stack([(a.float() - b.float()).abs().max() for a, b in pairs]).max().item()
    allowed = 16 * torch.finfo(dtype).eps if dtype.itemsize < 4 else 1e-3  # wide enough for TF32 inside a kernel
    if not worst <= allowed:  # a NaN must fail too
        where = f"attention on {device} in {dtype}"
        raise RuntimeError(f"{where} is wrong: off by {worst:.3g} from a plain softmax, rounding allows {allowed:.3g}")
    return worst
