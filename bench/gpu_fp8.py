"""Products of linear layers in FP8 beside bfloat16: error and time of torch's own scaled product, one scale a tensor."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from gpu_row import Row, off, seconds

TOKENS = 8192
LAYERS = {  # outputs, inputs
    "Llama 3 8B, q": (4096, 4096),
    "Llama 3 8B, k and v": (1024, 4096),
    "Llama 3 8B, gate and up": (14336, 4096),
    "Llama 3 8B, down": (4096, 14336),
    "SmolLM2 135M, gate and up": (1536, 576),
}
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
PRODUCTS = {"forward": (E4M3, E4M3), "backward": (E5M2, E4M3)}  # formats of the left and of the right matrix


def quantized(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """A tensor in 8 bits, and the float32 factor back: its largest value becomes the format's."""
    scale = x.abs().amax().float().clamp(min=1e-12) / torch.finfo(dtype).max
    return (x.float() / scale).to(dtype), scale


def scaled(left: Tensor, right: Tensor, formats: tuple[torch.dtype, torch.dtype]) -> Tensor:
    """left [T, K] times right [O, K] transposed, both rounded to 8 bits; summed in float32, given in bfloat16."""
    (a, a_scale), (b, b_scale) = quantized(left, formats[0]), quantized(right, formats[1])
    return torch._scaled_mm(a, b.t(), scale_a=a_scale, scale_b=b_scale, out_dtype=torch.bfloat16)


def check(device: str, tokens: int = TOKENS, layers: dict[str, tuple[int, int]] = LAYERS) -> Iterator[Row]:
    """Errors against float64 on a part of the rows; times of the product alone and with its two roundings."""
    for name, (outputs, inputs) in layers.items():
        draw = torch.Generator().manual_seed(outputs + inputs)
        x, w = (torch.randn(n, inputs, generator=draw).to(device, torch.bfloat16) for n in (tokens, outputs))
        part = slice(0, min(tokens, 256))
        wanted = x[part].double() @ w.double().t()
        plain, plain_seconds = off((x @ w.t())[part], wanted), seconds(lambda a=x, b=w: a @ b.t(), device)
        setting = f"{name}: {tokens} x {inputs} x {outputs}"
        for phase, formats in PRODUCTS.items():
            error = off(scaled(x, w, formats)[part], wanted)
            yield Row("FP8", f"{setting}, {phase}", "error", error, "of the product", plain, "bf16")
        (a, a_scale), (b, b_scale) = quantized(x, E4M3), quantized(w, E4M3)

        def product(a: Tensor = a, b: Tensor = b, scales: tuple = (a_scale, b_scale)) -> Tensor:
            return torch._scaled_mm(a, b.t(), scale_a=scales[0], scale_b=scales[1], out_dtype=torch.bfloat16)

        alone = seconds(product, device)
        whole = seconds(lambda x=x, w=w: scaled(x, w, PRODUCTS["forward"]), device)
        yield Row("FP8", setting, "time of the product", 1e3 * alone, "ms", 1e3 * plain_seconds, "bf16")
        yield Row("FP8", setting, "time with both roundings", 1e3 * whole, "ms", 1e3 * plain_seconds, "bf16")
        yield Row("FP8", setting, "rate", 2e-12 * tokens * inputs * outputs / alone, "TFLOP/s")
