"""Cases of attention over packs of sequences, and how far a kernel is from float64 beside plain attention of the same format.

As a program it prints the errors of the Triton kernels, which run through Triton's interpreter: `TRITON_INTERPRET=1 python
tests/flash_cases.py NAME ...`.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from dataclasses import dataclass
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from burnish.models.attention import Pattern
from burnish.ops.flash_attention import pack_attention
from burnish.ops.plain_attention import plain_attention

NAMES = ("out", "dq", "dk", "dv")


@dataclass(frozen=True)
class Case:
    """Sequences of a pack, heads, and the keys before and behind its own that a query sees (-1: all)."""

    queries: tuple[int, ...]
    keys: tuple[int, ...] = ()
    heads: int = 2
    kv_heads: int = 2
    dim: int = 32
    window: tuple[int, int] = (-1, 0)

    @property
    def lengths(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return self.queries, self.keys or self.queries


RAGGED = (1, 20, 9, 33)
CASES = {
    "causal": Case((37, 37)),
    "all keys": Case((97, 37), window=(-1, -1)),
    "ragged pack": Case(RAGGED),
    "ragged pack, all keys": Case(RAGGED, window=(-1, -1)),
    "length 1": Case((1,)),
    "window": Case((70,), window=(8, 0)),
    "window of 1": Case((19,), window=(0, 0)),
    "window, ragged pack": Case((3, 40, 1), window=(15, 0)),
    "window both ways": Case((45,), window=(5, 3)),
    "grouped heads": Case((35, 35), heads=6, kv_heads=2),
    "one key head, ragged pack": Case((11, 30), heads=3, kv_heads=1),
    "more keys than queries": Case((5, 30), (33, 30)),
    "queries that see nothing": Case((76, 34, 146), (1, 1, 1)),
    "queries that see nothing, window": Case((30, 8), (9, 40), window=(4, 0)),
    "no keys": Case((6, 24), (0, 24)),
    **{f"head size {dim}": Case((23, 7), heads=2, kv_heads=1, dim=dim) for dim in (40, 64, 80, 96, 128, 256)},
}
CHEAP = ("window, ragged pack", "one key head, ragged pack", "queries that see nothing, window", "head size 40")


def inputs(case: Case, dtype: torch.dtype) -> list[Tensor]:
    """q, k, v and the gradient of the output, drawn in float64 and rounded once."""
    draw = torch.Generator().manual_seed(3)
    rows, (heads, kv_heads) = [sum(lengths) for lengths in case.lengths], (case.heads, case.kv_heads)
    shapes = ((rows[0], heads), (rows[1], kv_heads), (rows[1], kv_heads), (rows[0], heads))
    return [torch.randn(*s, case.dim, generator=draw, dtype=torch.float64).to(dtype) for s in shapes]


def reference(q: Tensor, k: Tensor, v: Tensor, case: Case) -> Tensor:
    """The formula, head by head, query by query's visible keys."""
    before, behind = case.window
    pieces, group = [], case.heads // case.kv_heads
    for q_part, k_part, v_part in zip(*map(torch.split, (q, k, v), spans(case)), strict=True):
        own = torch.arange(len(q_part))[:, None] + len(k_part) - len(q_part)
        at = torch.arange(len(k_part))
        seen = torch.ones(len(q_part), len(k_part), dtype=torch.bool)
        seen &= (at <= own + behind) if behind >= 0 else seen
        seen &= (at >= own - before) if before >= 0 else seen
        heads = []
        for head in range(case.heads):
            scores = q_part[:, head] @ k_part[:, head // group].T * case.dim**-0.5
            weights = torch.where(seen, scores.exp(), 0)  # small enough as they are
            total = weights.sum(-1, keepdim=True)
            heads.append(weights / torch.where(total > 0, total, 1) @ v_part[:, head // group])
        pieces.append(torch.stack(heads, 1))
    return torch.cat(pieces)


def spans(case: Case) -> list[list[int]]:
    queries, keys = map(list, case.lengths)
    return [queries, keys, keys]


def plain(q: Tensor, k: Tensor, v: Tensor, case: Case) -> Tensor:
    """Plain attention, a sequence at a time, with a mask for what its own pattern does not say."""
    before, behind = case.window
    pieces = []
    for parts in zip(*map(torch.split, (q, k, v), spans(case)), strict=True):
        own = torch.arange(len(parts[0]))[:, None] + len(parts[1]) - len(parts[0])
        at = torch.arange(len(parts[1]))
        hidden = (at > own + behind) if behind >= 0 else torch.zeros(len(own), len(at), dtype=torch.bool)
        hidden |= (at < own - before) if before >= 0 else hidden
        pieces.append(plain_attention(*(x[None] for x in parts), Pattern(False, ~hidden[None, None]))[0])
    return torch.cat(pieces)


def tensors(function: Any, case: Case, dtype: torch.dtype, wide: bool = False) -> tuple[Tensor, ...]:
    """Output and gradients of q, k, v; `wide` computes in float64 from the rounded inputs."""
    *given, grad = (x.double() if wide else x for x in inputs(case, dtype))
    leaves = [x.requires_grad_() for x in given]
    out = function(*leaves, case)
    return (out.detach(), *torch.autograd.grad(out, leaves, grad))


def kernel(name: str, blocks: tuple[int, int] = (16, 32)) -> Any:
    return lambda q, k, v, case: pack_attention(q, k, v, case.lengths, case.window, name, blocks)


def errors(function: Any, case: Case, dtype: torch.dtype) -> dict[str, tuple[float, float]]:
    """(error, error of plain attention) of each tensor against float64: root mean squares.

    Where plain attention happens to be exact, as for a query that sees one key, the second is what one rounding in float32
    makes.
    """
    wanted = tensors(reference, case, dtype, wide=True)
    found, control = tensors(function, case, dtype), tensors(plain, case, dtype)
    off = [[size(a.double() - w) for a, w in zip(x, wanted, strict=True)] for x in (found, control)]
    least = [torch.finfo(torch.float32).eps * (size(w) if size(w) > 1e-12 else 1.0) for w in wanted]
    return {name: (a, max(b, c)) for name, a, b, c in zip(NAMES, *off, least, strict=True)}


def size(x: Tensor) -> float:
    return x.square().mean().sqrt().item() if x.numel() else 0.0


def worst(found: dict[str, tuple[float, float]]) -> float:
    """The largest ratio of the two errors."""
    return max(mine / control for mine, control in found.values())


def break_forward(old: str, new: str) -> None:
    """Break the forward kernel: `new` in place of `old`, which stands in its source once."""
    from burnish.ops import flash_triton
    from burnish.ops import flash_triton_kernels as kernels

    source = Path(kernels.__file__).read_text(encoding="utf-8")
    assert source.count(old) == 1
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "broken_kernels.py"
        path.write_text(source.replace(old, new), encoding="utf-8")
        spec = spec_from_file_location("broken_kernels", path)
        assert spec is not None
        assert spec.loader is not None
        broken = module_from_spec(spec)
        spec.loader.exec_module(broken)
        flash_triton.forward_kernel = broken.forward_kernel
        found = {name: errors(kernel("triton"), CASES[name], torch.float32) for name in ("all keys",)}
        print(json.dumps({f"{name} in float32": each for name, each in found.items()}))


if __name__ == "__main__":
    torch.set_num_threads(1)
    if "FLASH_BROKEN" in os.environ:
        break_forward(*os.environ["FLASH_BROKEN"].split("=>"))
        sys.exit()
    wanted = [name.rsplit(" in ", 1) for name in sys.argv[1:]]
    print(json.dumps({f"{n} in {d}": errors(kernel("triton"), CASES[n], getattr(torch, d)) for n, d in wanted}))
