"""Flash attention as Triton kernels: forward, gradient of queries, gradient of keys and values.

The tiling of ops/flash_tiled.py, a program for each tile and head, all in one launch however the pack is cut. Gradients of keys
and values are summed over their group of query heads inside one program: no atomic sums, the same bits every time.

Pointers are into contiguous [T, N, D] and [U, K, D], log-sum-exp and delta into [T, N]. `table` is [tiles, 5]: the first row
of queries, how many; the first row of keys, how many; where in its sequence the tile begins. `sizes` is `Sizes` of
ops/flash_triton.py.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)  # exponentials are powers of 2 on the chip


@triton.jit
def forward_kernel(given: tl.tuple, made: tl.tuple, table: tl.tensor, sizes: tl.constexpr) -> None:
    """given: q, k, v; made: out, log-sum-exp."""
    HEADS: tl.constexpr = sizes[0]
    DIM: tl.constexpr = sizes[2]
    BLOCK_Q: tl.constexpr = sizes[4]
    BLOCK_K: tl.constexpr = sizes[5]
    q, k, v = given
    out, sums = made
    head = tl.program_id(1)
    kv_head = head // (HEADS // sizes[1])
    q_row, q_len, k_row, k_len, first = _tile(table)
    at_q = first + tl.arange(0, BLOCK_Q)
    at_d = tl.arange(0, sizes[3])
    inside = at_q < q_len
    both = inside[:, None] & (at_d < DIM)[None, :]
    place = q_row.to(tl.int64) * HEADS + head + at_q * HEADS
    base, at_out = q_row.to(tl.int64) * (HEADS * DIM) + head * DIM, at_q[:, None] * (HEADS * DIM) + at_d[None, :]
    q_tile = tl.load(q + base + at_out, mask=both, other=0.0)
    own = at_q + k_len - q_len
    highest = tl.full([BLOCK_Q], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_Q], tl.float32)
    acc = tl.zeros([BLOCK_Q, sizes[3]], tl.float32)
    start, stop = _seen(first, k_len - q_len, k_len, sizes)
    for at in range(start, stop, BLOCK_K):
        at_k = at + tl.arange(0, BLOCK_K)
        k_tile = _keys(k, k_row, at_k, k_len, kv_head, sizes)
        scores = _product(q_tile, tl.trans(k_tile), None, sizes) * (sizes[8] * LOG2E)
        scores = tl.where(_visible(own, at_k, k_len, sizes), scores, float("-inf"))
        new = tl.maximum(highest, tl.max(scores, 1))
        under = tl.where(new == float("-inf"), 0.0, new)  # nothing seen so far: every exponential is 0
        shrink = tl.exp2(highest - under)
        exponentials = tl.exp2(scores - under[:, None])
        total = total * shrink + tl.sum(exponentials, 1)
        v_tile = _keys(v, k_row, at_k, k_len, kv_head, sizes)
        acc = _product(_rounded(exponentials, v_tile.dtype, sizes), v_tile, acc * shrink[:, None], sizes)
        highest = new
    seen = total > 0
    acc = acc / tl.where(seen, total, 1.0)[:, None]
    log_sums = (highest + tl.log2(tl.where(seen, total, 1.0))) / LOG2E
    tl.store(out + base + at_out, _rounded(acc, out.dtype.element_ty, sizes), mask=both)
    tl.store(sums + place, tl.where(seen, log_sums, float("-inf")), mask=inside)


@triton.jit
def queries_kernel(given: tl.tuple, made: tl.tuple, table: tl.tensor, sizes: tl.constexpr) -> None:
    """given: dO, q, k, v, out, log-sum-exp; made: dq, and delta = rowsum(dO out), which `keys_kernel` reads."""
    HEADS: tl.constexpr = sizes[0]
    DIM: tl.constexpr = sizes[2]
    BLOCK_Q: tl.constexpr = sizes[4]
    BLOCK_K: tl.constexpr = sizes[5]
    grad, q, k, v, out, sums = given
    for_q, delta = made
    head = tl.program_id(1)
    kv_head = head // (HEADS // sizes[1])
    q_row, q_len, k_row, k_len, first = _tile(table)
    at_q = first + tl.arange(0, BLOCK_Q)
    at_d = tl.arange(0, sizes[3])
    inside = at_q < q_len
    both = inside[:, None] & (at_d < DIM)[None, :]
    place = q_row.to(tl.int64) * HEADS + head + at_q * HEADS
    base, at_out = q_row.to(tl.int64) * (HEADS * DIM) + head * DIM, at_q[:, None] * (HEADS * DIM) + at_d[None, :]
    q_tile = tl.load(q + base + at_out, mask=both, other=0.0)
    grad_tile = tl.load(grad + base + at_out, mask=both, other=0.0)
    out_tile = tl.load(out + base + at_out, mask=both, other=0.0)
    delta_tile = tl.sum(grad_tile.to(tl.float32) * out_tile.to(tl.float32), 1)
    tl.store(delta + place, delta_tile, mask=inside)
    sums_tile = _logs(sums, place, inside)
    own = at_q + k_len - q_len
    acc = tl.zeros([BLOCK_Q, sizes[3]], tl.float32)
    start, stop = _seen(first, k_len - q_len, k_len, sizes)
    for at in range(start, stop, BLOCK_K):
        at_k = at + tl.arange(0, BLOCK_K)
        k_tile = _keys(k, k_row, at_k, k_len, kv_head, sizes)
        v_tile = _keys(v, k_row, at_k, k_len, kv_head, sizes)
        scores = _product(q_tile, tl.trans(k_tile), None, sizes) * (sizes[8] * LOG2E)
        scores = tl.where(_visible(own, at_k, k_len, sizes), scores, float("-inf"))
        chances = tl.exp2(scores - sums_tile[:, None])
        for_chances = _product(grad_tile, tl.trans(v_tile), None, sizes)
        for_scores = chances * (for_chances - delta_tile[:, None])
        acc = _product(_rounded(for_scores, k_tile.dtype, sizes), k_tile, acc, sizes)
    tl.store(for_q + base + at_out, _rounded(acc * sizes[8], for_q.dtype.element_ty, sizes), mask=both)


@triton.jit
def keys_kernel(given: tl.tuple, made: tl.tuple, table: tl.tensor, sizes: tl.constexpr) -> None:
    """given: dO, q, k, v, log-sum-exp, delta; made: dk, dv. A tile is one of keys here, a head one of theirs."""
    HEADS: tl.constexpr = sizes[0]
    GROUP: tl.constexpr = sizes[0] // sizes[1]
    DIM: tl.constexpr = sizes[2]
    BLOCK_Q: tl.constexpr = sizes[6]
    BLOCK_K: tl.constexpr = sizes[7]
    grad, q, k, v, sums, delta = given
    for_k, for_v = made
    kv_head = tl.program_id(1)
    q_row, q_len, k_row, k_len, first = _tile(table)
    at_k = first + tl.arange(0, BLOCK_K)
    at_d = tl.arange(0, sizes[3])
    k_tile = _keys(k, k_row, at_k, k_len, kv_head, sizes)
    v_tile = _keys(v, k_row, at_k, k_len, kv_head, sizes)
    k_acc = tl.zeros([BLOCK_K, sizes[3]], tl.float32)
    v_acc = tl.zeros([BLOCK_K, sizes[3]], tl.float32)
    start, stop = _seeing(first, k_len - q_len, q_len, sizes)
    blocks = tl.maximum(tl.cdiv(stop - start, BLOCK_Q), 0)
    for turn in range(GROUP * blocks):  # every block of queries under each head of the group
        head = kv_head * GROUP + turn // blocks
        at_q = start + turn % blocks * BLOCK_Q + tl.arange(0, BLOCK_Q)
        inside = at_q < q_len
        both = inside[:, None] & (at_d < DIM)[None, :]
        place = q_row.to(tl.int64) * HEADS + head + at_q * HEADS
        base, at_in = q_row.to(tl.int64) * (HEADS * DIM) + head * DIM, at_q[:, None] * (HEADS * DIM) + at_d[None, :]
        q_tile = tl.load(q + base + at_in, mask=both, other=0.0)
        grad_tile = tl.load(grad + base + at_in, mask=both, other=0.0)
        scores = _product(q_tile, tl.trans(k_tile), None, sizes) * (sizes[8] * LOG2E)
        seen = _visible(at_q + k_len - q_len, at_k, k_len, sizes) & inside[:, None]
        scores = tl.where(seen, scores, float("-inf"))
        chances = tl.exp2(scores - _logs(sums, place, inside)[:, None])
        v_acc = _product(tl.trans(_rounded(chances, grad_tile.dtype, sizes)), grad_tile, v_acc, sizes)
        for_chances = _product(grad_tile, tl.trans(v_tile), None, sizes)
        delta_tile = tl.load(delta + place, mask=inside, other=0.0)
        for_scores = _rounded(chances * (for_chances - delta_tile[:, None]), q_tile.dtype, sizes)
        k_acc = _product(tl.trans(for_scores), q_tile, k_acc, sizes)
    both = (at_k < k_len)[:, None] & (at_d < DIM)[None, :]
    base = k_row.to(tl.int64) * (sizes[1] * DIM) + kv_head * DIM
    at_out = base + at_k[:, None] * (sizes[1] * DIM) + at_d[None, :]
    tl.store(for_k + at_out, _rounded(k_acc * sizes[8], for_k.dtype.element_ty, sizes), mask=both)
    tl.store(for_v + at_out, _rounded(v_acc, for_v.dtype.element_ty, sizes), mask=both)


@triton.jit
def _rounded(x: tl.tensor, dtype: tl.constexpr, sizes: tl.constexpr) -> tl.tensor:
    """x in another format, to nearest; the interpreter cuts off what bfloat16 does not hold."""
    if sizes[12] and dtype == tl.bfloat16:
        bits = x.to(tl.uint32, bitcast=True)
        x = ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).to(tl.float32, bitcast=True)
    return x.to(dtype)


@triton.jit
def _product(a: tl.tensor, b: tl.tensor, acc: tl.tensor | None, sizes: tl.constexpr) -> tl.tensor:
    """a b + acc in float32. The interpreter multiplies no bfloat16, and gets its rounded numbers as float32."""
    if sizes[12]:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), acc, input_precision=sizes[9])
    return tl.dot(a, b, acc, input_precision=sizes[9])


@triton.jit
def _tile(table: tl.tensor) -> tl.tuple:
    row = table + tl.program_id(0) * 5
    return tl.load(row), tl.load(row + 1), tl.load(row + 2), tl.load(row + 3), tl.load(row + 4)


@triton.jit
def _keys(
    x: tl.tensor, row: tl.tensor, at_k: tl.tensor, k_len: tl.tensor, kv_head: tl.tensor, sizes: tl.constexpr
) -> tl.tensor:
    """A tile of keys or values, [keys, D], zero outside."""
    at_d = tl.arange(0, sizes[3])
    both = (at_k < k_len)[:, None] & (at_d < sizes[2])[None, :]
    base = row.to(tl.int64) * (sizes[1] * sizes[2]) + kv_head * sizes[2]
    return tl.load(x + base + (at_k[:, None] * (sizes[1] * sizes[2]) + at_d[None, :]), mask=both, other=0.0)


@triton.jit
def _visible(own: tl.tensor, at_k: tl.tensor, k_len: tl.tensor, sizes: tl.constexpr) -> tl.tensor:
    """[queries, keys]: whether a query, whose own place among the keys is given, sees a key."""
    seen = (at_k < k_len)[None, :] & (own == own)[:, None]
    if sizes[11] >= 0:
        seen = seen & (at_k[None, :] <= own[:, None] + sizes[11])
    if sizes[10] >= 0:
        seen = seen & (at_k[None, :] >= own[:, None] - sizes[10])
    return seen


@triton.jit
def _seen(first: tl.tensor, shift: tl.tensor, k_len: tl.tensor, sizes: tl.constexpr) -> tl.tuple:
    """The keys [from, to) that queries of the tile at `first` see, from a multiple of a tile on."""
    start = first * 0
    stop = start + k_len
    if sizes[10] >= 0:
        start = tl.maximum(first + shift - sizes[10], 0) // sizes[5] * sizes[5]
    if sizes[11] >= 0:
        stop = tl.minimum(first + sizes[4] + shift + sizes[11], k_len)
    return start, stop


@triton.jit
def _seeing(first: tl.tensor, shift: tl.tensor, q_len: tl.tensor, sizes: tl.constexpr) -> tl.tuple:
    """The queries [from, to) that see keys of the tile at `first`."""
    start = first * 0
    stop = start + q_len
    if sizes[11] >= 0:
        start = tl.maximum(first - sizes[11] - shift, 0) // sizes[6] * sizes[6]
    if sizes[10] >= 0:
        stop = tl.minimum(first + sizes[7] + sizes[10] - shift, q_len)
    return start, stop


@triton.jit
def _logs(sums: tl.tensor, place: tl.tensor, inside: tl.tensor) -> tl.tensor:
    """Log-sum-exp as a power of 2; infinity for a query that saw nothing, under which every probability is 0."""
    found = tl.load(sums + place, mask=inside, other=float("-inf"))
    return tl.where(found == float("-inf"), float("inf"), found * LOG2E)
