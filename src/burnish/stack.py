"""Stack: whose software runs the job, as data: what it fuses, overlaps, keeps and in which formats.

A stack is a tool and a release. One without a row of its own is priced by the nearest release of its tool, or by the
plainest stack of its kind, and the answer says so.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path


@dataclass(frozen=True)
class Stack:
    """Numbers a rank's work depends on beside the model and the mapping. Flags are 0 or 1."""

    name: str
    tool: str
    kind: str  # "megatron", "fsdp", "deepspeed", "jax", "plain"
    year: float  # of the release; a month counts a twelfth
    source: str
    # formats, bytes an element
    parameter: float = 2
    gradient: float = 4
    optimizer: float = 12  # masters and two moments
    # what runs as one kernel
    fused_norm: int = 1
    loss: str = "fused"  # cross entropy in one kernel (fused), kernel by kernel (plain), or so over a split vocabulary (parallel)
    fused_softmax: int = 1  # where attention scores are stored, one kernel scales, masks and normalises them
    chunked_loss: int = 0  # the loss never has all logits of a micro batch
    compiled: int = 0
    routing: str = (
        "fused"  # how tokens reach experts: "plain" (kernel by kernel), "fused", or "graphed" (under CUDA graphs)
    )
    fused_chains: int = 0  # bias, activation, dropout and sum as single kernels although driven from Python
    eager: int = 0  # each kernel launched from Python, one by one
    flash: str = "flash"  # what "flash" meant at its release
    # what hides behind what
    tp_overlap: int = 0
    dp_overlap: int = 0
    whole_reduce: int = 0  # gradients summed whole under ZeRO-1, as under plain data parallelism
    per_parameter: int = 0  # fully sharded parameter by parameter (FSDP2), not as flat buffers
    balanced: int = 0  # how pipeline stages are cut, an index into mapping.CUT
    # memory
    logits_split: int = 1  # logits divided over tensor-parallel ranks
    logits_bytes: float = 6  # bytes an element while the loss runs
    masks: int = 0  # dropout masks, one byte an element
    window_mask: int = 0  # a sliding window is a mask over all pairs of a row, kept for backward
    routing_kept: int = 0  # what tokens were routed by is kept tensor by tensor, as in models/experts.py
    norm_copies: float = 0  # further float32 copies of a norm's input an unfused norm keeps, in bytes an element
    score_bytes: float = 5  # bytes an attention score kept where scores are stored
    base_gib: float = 1.0  # context, workspaces and communication buffers beside tensors
    fused_score_bytes: float = 5  # ... where one kernel makes them probabilities
    output_copies: float = 0  # bytes an element of the attention output kept twice
    token_copies: float = 0  # bytes an element of a layer's tokens that code between operations keeps
    act_copies: float = 0  # bytes an element of a feed-forward activation's input kept beside it
    loose_copies: float = 0  # ... where several kernels make the activation, for an element of its input
    kept_input: float = 2  # bytes an element of the input a recomputed layer keeps; 0 = kept in host memory
    logits_held: float = 0  # share of the loss's logits still there while layers run again
    merged: int = 0  # float32 masters are the parameters; 16-bit copies are made from them
    flat_gradients: int = 0  # gradients stand in buffers of their own between steps
    weight_casts: float = 0  # bytes of low-precision copies of a weight, both ways round, that stay between steps
    step_gradient: float = 0  # bytes of a float32 gradient made for the optimizer, an owned parameter
    step_copies: float = 0  # copies of a moment that the optimizer's arithmetic makes
    bucket_gib: float = 0  # communication buffers of an engine that flattens, at most
    gathered: float = 2  # layers whose whole parameters are there at once under ZeRO-3
    dispatch_copies: float = 2  # bytes a routed element keeps on its way to an expert and back
    uneven: float = 1  # routed tokens of the fullest rank for those of the mean
    low_inputs: float = 1  # share of the bytes of a product's input that is kept where products are in low precision
    widened: int = 0  # 4-bit bases are trained with float32 norms, head and layer inputs
    flat_frozen: int = 0  # adapters share flat buffers with frozen weights: fully sharded, all of them get gradients
    double_quantized: int = 1  # the scales of 4-bit blocks are in 8 bits themselves; 0 = float32
    workspaces: int = 2  # cuBLAS workspaces
    engine_workspaces: int = 0  # of Transformer Engine
    reserve: float = 0.07  # share of activations that the allocator holds in pieces
    sp_default: int = 0  # sequence parallel where tensor parallel is used

    def kernel(self, attention: str) -> str:
        """The attention kernel that a name from `job.ATTENTION` means under this stack."""
        kernel = self.flash if attention == "flash" else attention
        return "fused-softmax" if kernel == "unfused" and self.fused_softmax else kernel


# The decoder, loss and engine of this package.
OURS = Stack(
    "burnish", "burnish", "fsdp", 2026, "this package", chunked_loss=1, dp_overlap=1, window_mask=1, routing_kept=1
)


@cache
def stacks() -> dict[str, Stack]:
    """The profiles, by name."""
    path = Path(__file__).parent / "tables" / "stacks.toml"
    rows = tomllib.loads(path.read_text(encoding="utf-8"))
    return {name: Stack(name=name, **row) for name, row in rows.items()}


def nearest_stack(name: str) -> tuple[Stack, str]:
    """The profile for a stack's name and, where it is another's, a sentence saying which stands in for it.

    First the nearest release of the same tool, then the newest of a tool whose name is part of it, then plain PyTorch.
    """
    known = stacks()
    if name in known:
        return known[name], ""
    tool, release = _split(name)
    same = [s for s in known.values() if s.tool == tool]
    if same:
        best = min(same, key=lambda s: (abs(_split(s.name)[1] - release), -s.year))
    else:
        words = set(re.split(r"[^a-z0-9]+", name.lower()))
        kin = [s for s in known.values() if s.tool in words or s.kind in words]
        best = max(kin, key=lambda s: s.year) if kin else known["torch"]
    return best, f"no profile of stack {name!r}; priced as {best.name}"


def kin(name: str) -> bool:
    """Whether a name is a profile, or a release of a tool that has one."""
    return name in stacks() or _split(name)[0] in {stack.tool for stack in stacks().values()}


def _split(name: str) -> tuple[str, float]:
    """Tool and release of a stack's name: `nemo-24.11` is nemo, 24.11."""
    found = re.fullmatch(r"(.*?)-?(\d+(?:\.\d+)*)?", name)
    assert found is not None
    tool, release = found[1], found[2]
    return tool, float(".".join(release.split(".")[:2])) if release else 0.0
