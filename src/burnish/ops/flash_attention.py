"""Flash attention as two operations of torch, one made of plain tiles and one of Triton kernels, under one signature.

As operations they are one step each for whoever watches: counted by a FLOP counter, kept or run again as a whole by a
checkpoint, compiled without being looked into. Saved: q, k, v, output and one log-sum-exp a query and head.

Shape letters: T rows of queries, U rows of keys, N query heads, K key/value heads, D size of a head; B rows, S positions,
L keys.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from burnish.models.attention import Kernel, Pattern, attend
from burnish.ops import flash_tiled
from burnish.ops.flash_tiles import ALL, Tiles, read, tiles_of
from burnish.ops.plain_attention import plain_attention

TILED_PRODUCTS, TRITON_PRODUCTS = 5, 7  # in backward; kernels without atomic sums make scores and dP twice
INTERPRETED = "TRITON_INTERPRET"  # set to 1, kernels run on the CPU


def _on_tiled(q: Tensor, k: Tensor, v: Tensor, tiles: list[int]) -> tuple[Tensor, Tensor]:
    return flash_tiled.forward(q, k, v, read(tiles))


def _back_tiled(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, sums: Tensor, tiles: list[int]
) -> tuple[Tensor, Tensor, Tensor]:
    return flash_tiled.backward(grad, q, k, v, out, sums, read(tiles))


def _on_triton(q: Tensor, k: Tensor, v: Tensor, tiles: list[int]) -> tuple[Tensor, Tensor]:
    from burnish.ops import flash_triton

    return flash_triton.forward(q, k, v, read(tiles))


def _back_triton(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, sums: Tensor, tiles: list[int]
) -> tuple[Tensor, Tensor, Tensor]:
    from burnish.ops import flash_triton

    return flash_triton.backward(grad, q, k, v, out, sums, read(tiles))


def _like_forward(q: Tensor, k: Tensor, v: Tensor, tiles: list[int]) -> tuple[Tensor, Tensor]:
    return torch.empty(q.shape, dtype=q.dtype, device=q.device), flash_tiled.empty_sums(q)


def _like_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, sums: Tensor, tiles: list[int]
) -> tuple[Tensor, Tensor, Tensor]:
    q_like, k_like, v_like = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, v))
    return q_like, k_like, v_like


def _operation(name: str, forward: Callable[..., Any], backward: Callable[..., Any], products: int) -> Any:
    """An operation with its gradient, shapes and FLOPs (products of T x U x D a head, by the full convention)."""
    made = torch.library.custom_op(f"burnish::{name}", forward, mutates_args=())
    back = torch.library.custom_op(f"burnish::{name}_backward", backward, mutates_args=())
    made.register_fake(_like_forward)
    back.register_fake(_like_backward)

    def keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        *tensors, ctx.tiles = inputs
        ctx.save_for_backward(*tensors, *output)
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)

    def gradients(ctx: Any, grad: Tensor | None, _: Any) -> tuple[Tensor | None, ...]:
        if grad is None:
            return None, None, None, None
        return (*back(grad.contiguous(), *ctx.saved_tensors, ctx.tiles), None)

    made.register_autograd(gradients, setup_context=keep)
    packets = torch.ops.burnish

    def counted(times: int, query: Any, tiles: Sequence[int]) -> int:
        return 2 * times * int(query[1]) * read(tiles).pairs * int(query[2])

    def flops(query: Any, key: Any, value: Any, tiles: Any, *_: Any, **__: Any) -> int:
        return counted(2, query, tiles)

    def flops_back(grad: Any, query: Any, key: Any, value: Any, out: Any, sums: Any, tiles: Any, **_: Any) -> int:
        return counted(products, query, tiles)

    register_flop_formula(getattr(packets, name))(flops)
    register_flop_formula(getattr(packets, f"{name}_backward"))(flops_back)
    return made


tiled_attention = _operation("tiled_attention", _on_tiled, _back_tiled, TILED_PRODUCTS)
triton_attention = _operation("triton_attention", _on_triton, _back_triton, TRITON_PRODUCTS)
OPERATIONS = {"tiled": tiled_attention, "triton": triton_attention}
KEPT = (torch.ops.burnish.tiled_attention.default, torch.ops.burnish.triton_attention.default)  # whose results a
# checkpoint that chooses by operation keeps


def pack_attention(
    q_TND: Tensor,
    k_UKD: Tensor,
    v_UKD: Tensor,
    lengths: tuple[Sequence[int], Sequence[int]],
    window: tuple[int, int] = (ALL, 0),
    kernel: str = "tiled",
    blocks: tuple[int, int] = (64, 128),
) -> Tensor:
    """Attention of sequences of any lengths that stand one after another, [T, N, D].

    lengths: of the queries and of the keys of each sequence. window: keys before and behind its own that a query sees, -1
    for all; (-1, 0) is causal. A query that sees no key gives 0 and has gradient 0. blocks: rows of a tile of queries and
    of keys; Triton's come from a table. Raises ValueError for rows that no sequence covers, heads that do not divide, a
    device that the kernel does not run on.
    """
    tiles = Tiles(tuple(lengths[0]), tuple(lengths[1]), *window, *blocks)
    tiles.check(q_TND.shape[0], k_UKD.shape[0])
    if q_TND.shape[1] % k_UKD.shape[1] or k_UKD.shape != v_UKD.shape or q_TND.shape[2] != k_UKD.shape[2]:
        shapes = ", ".join(str(tuple(x.shape)) for x in (q_TND, k_UKD, v_UKD))
        raise ValueError(f"attention: {shapes} do not go together; query heads must be a multiple of key heads")
    if kernel == "triton" and not runs_triton(q_TND):
        raise ValueError(f"kernel triton does not run on {q_TND.device.type} in {q_TND.dtype}; use tiled")
    return OPERATIONS[kernel](q_TND, k_UKD, v_UKD, tiles.written())[0]


def runs_triton(q: Tensor) -> bool:
    """Whether the Triton kernels run on a tensor: with Triton on CUDA, or through its interpreter; not in float64."""
    there = (q.is_cuda or os.environ.get(INTERPRETED) == "1") and find_spec("triton") is not None
    return there and q.dtype in (torch.float16, torch.bfloat16, torch.float32)


def tile_attention(
    kernel: str, blocks: tuple[int, int], q_BSND: Tensor, k_BLKD: Tensor, v_BLKD: Tensor, pattern: Pattern
) -> Tensor:
    """As `models.attention.attend`, by tiles. A mask is not tiled: a batch with pads on the left, or a padded cache, goes to
    torch's own kernel."""
    if pattern.mask is not None:
        return attend(q_BSND, k_BLKD, v_BLKD, pattern)
    rows, queries = q_BSND.shape[:2]
    tiles = tiles_of(pattern, rows, queries, k_BLKD.shape[1], blocks)
    q, k, v = (x.flatten(0, 1) for x in (q_BSND, k_BLKD, v_BLKD))
    lengths, window = (tiles.queries, tiles.keys), (tiles.before, tiles.behind)
    return pack_attention(q, k, v, lengths, window, kernel, blocks).view(q_BSND.shape)


def kernel_of(name: str, blocks: tuple[int, int]) -> Kernel | None:
    """The kernel a layer is given: None for torch's own, which it has without one."""
    if name == "sdpa":
        return None
    return plain_attention if name == "plain" else partial(tile_attention, name, blocks)
