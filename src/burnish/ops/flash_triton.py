"""Launch of the Triton kernels of flash attention, with the tile sizes each head size and format takes.

Shape letters: T rows of queries, U rows of keys, N query heads, K key/value heads, D size of a head.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from burnish.ops.flash_tiled import empty_sums
from burnish.ops.flash_tiles import Tiles
from burnish.ops.flash_triton_kernels import forward_kernel, keys_kernel, queries_kernel

# (head size up to, bytes an element up to) -> queries and keys of a tile forward, the same for gradients of keys, warps.
# In 16 bits what fits the registers and the shared memory of sm_90 without spilling. Products of float32 with all of its bits
# are not made by the chip's matrix units, and gradients of keys spill; `bench/flash.py` prints what each takes.
BLOCKS: dict[tuple[int, int], tuple[int, int, int, int, int]] = {
    (64, 2): (128, 64, 64, 64, 4),
    (128, 2): (128, 64, 32, 64, 8),
    (256, 2): (64, 32, 32, 32, 8),
    (64, 4): (32, 32, 32, 32, 8),
    (128, 4): (32, 32, 16, 16, 8),
    (256, 4): (16, 16, 16, 16, 8),
}
SMALLEST = 16  # rows and columns of the least product that the chip's matrix units take


class Sizes(NamedTuple):
    """What a kernel is compiled for."""

    heads: int
    kv_heads: int
    dim: int
    block_d: int  # the next power of 2
    block_q: int
    block_k: int
    back_q: int
    back_k: int
    scale: float
    precision: str  # of products of float32: all of its bits
    before: int
    behind: int
    widened: bool  # operands of products, ahead of them: for the interpreter


def sizes_of(q_TND: Tensor, k_UKD: Tensor, tiles: Tiles) -> tuple[Sizes, int]:
    """The sizes for these tensors, and the warps of a program. Raises ValueError for heads of more than 256."""
    heads, dim = q_TND.shape[1:]
    fits = [row for row in BLOCKS if dim <= row[0] and q_TND.element_size() <= row[1]]
    if not fits:
        raise ValueError(f"kernel triton: heads of {dim} elements; it takes up to {max(BLOCKS)[0]}, use sdpa or tiled")
    q_rows, k_rows, back_q, back_k, warps = BLOCKS[min(fits, key=lambda row: (row[1], row[0]))]
    return Sizes(
        heads=heads,
        kv_heads=k_UKD.shape[1],
        dim=dim,
        block_d=max(SMALLEST, 1 << (dim - 1).bit_length()),
        block_q=q_rows,
        block_k=k_rows,
        back_q=back_q,
        back_k=back_k,
        scale=dim**-0.5,
        precision="ieee",
        before=tiles.before,
        behind=tiles.behind,
        widened=not q_TND.is_cuda,
    ), warps


@lru_cache(maxsize=16)
def table_of(tiles: Tiles, block: int, of_keys: bool, device: torch.device) -> Tensor:
    """One row a tile, int32 [tiles, 5]: first row and number of its sequence's queries, of its keys, and where it begins."""
    rows, q_row, k_row = [], 0, 0
    for q_len, k_len in zip(tiles.queries, tiles.keys, strict=True):
        rows += [(q_row, q_len, k_row, k_len, first) for first in range(0, k_len if of_keys else q_len, block)]
        q_row, k_row = q_row + q_len, k_row + k_len
    return torch.tensor(rows, dtype=torch.int32).view(-1, 5).to(device)


def forward(q_TND: Tensor, k_UKD: Tensor, v_UKD: Tensor, tiles: Tiles) -> tuple[Tensor, Tensor]:
    """As `flash_tiled.forward`."""
    given = [x.contiguous() for x in (q_TND, k_UKD, v_UKD)]
    out, sums = torch.empty_like(given[0]), empty_sums(q_TND)
    sizes, warps = sizes_of(q_TND, k_UKD, tiles)
    _launch(forward_kernel, given, (out, sums), table_of(tiles, sizes.block_q, False, q_TND.device), sizes, warps)
    return out, sums


def backward(
    grad_TND: Tensor, q_TND: Tensor, k_UKD: Tensor, v_UKD: Tensor, out_TND: Tensor, sums_TN: Tensor, tiles: Tiles
) -> tuple[Tensor, Tensor, Tensor]:
    """As `flash_tiled.backward`."""
    grad, q, k, v = (x.contiguous() for x in (grad_TND, q_TND, k_UKD, v_UKD))
    for_q, for_k, for_v, delta = (torch.empty_like(x) for x in (q, k, v, sums_TN))
    sizes, warps = sizes_of(q, k, tiles)
    own = table_of(tiles, sizes.block_q, False, q.device)
    _launch(queries_kernel, (grad, q, k, v, out_TND, sums_TN), (for_q, delta), own, sizes, warps)
    theirs = table_of(tiles, sizes.back_k, True, q.device)
    _launch(keys_kernel, (grad, q, k, v, sums_TN, delta), (for_k, for_v), theirs, sizes, warps, of_keys=True)
    return for_q, for_k, for_v


def _launch(
    kernel: Any, given: Any, made: Any, table: Tensor, sizes: Sizes, warps: int, *, of_keys: bool = False
) -> None:
    heads = sizes.kv_heads if of_keys else sizes.heads
    if len(table):
        kernel[(len(table), heads)](tuple(given), tuple(made), table, tuple(sizes), num_warps=warps)
