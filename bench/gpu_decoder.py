"""The decoder in bfloat16 beside float32, with each attention kernel that runs there: scores and gradients."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from burnish.config import ModelConfig
from burnish.models.decoder import Decoder
from burnish.ops.flash_attention import kernel_of, runs_triton
from gpu_row import Row, off

MODEL = ModelConfig(
    vocab=8192, hidden=1024, ffn=2816, heads=16, kv_heads=4, layers=6, head_dim=64, tied=True, max_positions=2048
)
SEGMENTS = ((700, 324), (1024,))


def computed(model: Decoder, ids: Tensor, segments: tuple | None) -> list[Tensor]:
    """Scores of the last 16 tokens of each row, and the gradients of the loss by every matrix of the first layer."""
    hidden = model(ids, segments=segments)
    logits = model.logits(hidden)
    loss = F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten())
    weights = [p for p in model.layers[0].parameters() if p.dim() > 1]
    return [logits[:, -16:].detach(), *torch.autograd.grad(loss, weights)]


def check(device: str, shape: ModelConfig = MODEL, segments: tuple = SEGMENTS) -> Iterator[Row]:
    """Errors of bfloat16 against the same weights in float32 with torch's own attention."""
    torch.backends.cuda.matmul.allow_tf32 = False
    model = Decoder(shape, torch.Generator().manual_seed(0)).bfloat16().to(device)
    exact = Decoder(shape).to(device)
    exact.load_state_dict(model.state_dict())
    length = sum(segments[0])
    ids = torch.randint(shape.vocab, (len(segments), length), generator=torch.Generator().manual_seed(1)).to(device)
    names = ["plain", "sdpa", "tiled"] + ["triton"] * runs_triton(next(model.parameters()))
    for layout, pieces in (("whole rows", None), ("packed rows", segments)):
        wanted = computed(exact, ids, pieces)
        control = None
        for name in names:
            for layer in model.layers:
                layer.attention.kernel = kernel_of(name, (64, 128))
            found = computed(model, ids, pieces)
            errors = off(found[0], wanted[0]), max(off(a, b) for a, b in zip(found[1:], wanted[1:], strict=True))
            control = control or errors
            setting = f"{shape.parameters / 1e6:.0f}M parameters, {len(segments)} x {length} tokens, {layout}, {name}"
            for what, mine, theirs in zip(("scores", "gradients"), errors, control, strict=True):
                yield Row("bf16 decoder", setting, f"error of {what}", mine, "of float32", theirs, "plain attention")
