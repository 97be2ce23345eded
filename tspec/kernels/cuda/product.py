"""The product that every linear kernel is built on: out^T = weight · x^T for few rows, streaming the weights.

Weights are the tall operand of the dot and rows the narrow one, so that 16, 32 or 64 rows use one instruction
family and a row's bits do not depend on how many rows there are. Device functions only; linear.py launches them.
"""

import triton
import triton.language as tl

from tspec.kernels.cuda.interpret import dot

LINE_BYTES = tl.constexpr(128)
"""What one prefetch brings into L2."""


@triton.jit
def prefetch_weights(weight_ptr, output, k_start, K, COLUMNS: tl.constexpr):
    """Bring rows `output`: [BLOCK_N] int64 of the weights, COLUMNS columns from k_start, into L2."""
    step: tl.constexpr = LINE_BYTES * 8 // weight_ptr.dtype.element_ty.primitive_bitwidth
    lines: tl.constexpr = max(1, COLUMNS // step)
    k = tl.minimum(k_start + tl.arange(0, lines) * step, K - 1)
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;",
        "=r,l",
        [(weight_ptr + output[:, None] * K + k[None, :]).to(tl.int64)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def start_early(weight_ptr, output, k_start, K, COLUMNS: tl.constexpr):
    """Let the next launch start, prefetch this program's first weights, then wait for the launch before.

    Weights never change, so they may be fetched before the wait; everything else is read after it.
    """
    tl.extra.cuda.gdc_launch_dependents()
    prefetch_weights(weight_ptr, output, k_start, K, COLUMNS)
    tl.extra.cuda.gdc_wait()


@triton.jit
def load_weights(weight_ptr, output, k, K, EVEN_K: tl.constexpr, POLICY: tl.constexpr):
    """[BLOCK_N, BLOCK_K] of the weights, 0 past the last column; `output` is int64 and in range."""
    places = weight_ptr + output[:, None] * K + k[None, :]
    if EVEN_K:
        return tl.load(places, eviction_policy=POLICY)
    return tl.load(places, mask=(k < K)[None, :], other=0.0, eviction_policy=POLICY)


@triton.jit
def load_rows(x_ptr, row, rows, k, K, EVEN_K: tl.constexpr):
    """[M_TILE, BLOCK_K] of x, 0 past the last row and the last column; `row` is int64."""
    live = (row < rows)[:, None]
    if not EVEN_K:
        live = live & (k < K)[None, :]
    return tl.load(x_ptr + row[:, None] * K + k[None, :], mask=live, other=0.0)


@triton.jit
def multiply(
    x_ptr, norm_ptr, weight_ptr, row, rows, output, start, end, K,
    M_TILE: tl.constexpr, WIDTH: tl.constexpr, BLOCK_K: tl.constexpr, EVEN_K: tl.constexpr, POLICY: tl.constexpr,
):  # fmt: skip
    """Sum weight[output, k] * x[row, k] (* norm[k]) over k in [start, end).

    Returns (acc, squares): acc float32 [WIDTH, M_TILE]; squares float32 [M_TILE], the sum of x[row, k]**2 where
    norm_ptr is given. `output`: [WIDTH] int64.
    Rows     independent: k ascends in blocks of BLOCK_K. The squares of a row are summed over runs of VECTOR
             neighbours, then block by block, then over the runs: a thread holds one run of one row, whatever M_TILE
    """
    VECTOR: tl.constexpr = 128 // x_ptr.dtype.element_ty.primitive_bitwidth
    acc = tl.zeros((WIDTH, M_TILE), dtype=tl.float32)
    runs = tl.zeros((M_TILE, BLOCK_K // VECTOR), dtype=tl.float32)
    for k_start in range(start, end, BLOCK_K):
        k = k_start + tl.arange(0, BLOCK_K)
        w = load_weights(weight_ptr, output, k, K, EVEN_K, POLICY)
        x = load_rows(x_ptr, row, rows, k, K, EVEN_K)
        if norm_ptr is not None:
            wide = x.to(tl.float32)
            runs += tl.sum(tl.reshape(wide * wide, (M_TILE, BLOCK_K // VECTOR, VECTOR)), axis=2)
            norm = tl.load(norm_ptr + k, mask=k < K, other=0.0)
            x = (wide * norm[None, :]).to(x.dtype)
        acc = dot(w, tl.trans(x), acc)
    return acc, tl.sum(runs, axis=1)


@triton.jit
def store_partial(
    slot_ptr, acc, squares, live, HAS_NORM: tl.constexpr, M_TILE: tl.constexpr, WIDTH: tl.constexpr
):  # fmt: skip
    """Write one split's sums to its slot: acc row by row, then squares. `live`: [M_TILE]."""
    local, column = tl.arange(0, M_TILE), tl.arange(0, WIDTH)
    tl.store(slot_ptr + local[None, :] * WIDTH + column[:, None], acc, mask=live[None, :])
    if HAS_NORM:
        tl.store(slot_ptr + M_TILE * WIDTH + local, squares, mask=live)


@triton.jit
def sum_partials(
    first_ptr, live, SPLIT_K: tl.constexpr, SLOT: tl.constexpr,
    HAS_NORM: tl.constexpr, M_TILE: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Add up the slots of all splits, split 0 first: whoever calls, and whenever, gets the same bits.

    Loads skip L1, which may hold what was there before the other programs wrote.
    """
    local, column = tl.arange(0, M_TILE), tl.arange(0, WIDTH)
    acc = tl.zeros((WIDTH, M_TILE), dtype=tl.float32)
    squares = tl.zeros((M_TILE,), dtype=tl.float32)
    for split in tl.static_range(SPLIT_K):
        slot_ptr = first_ptr + split * SLOT
        place = slot_ptr + local[None, :] * WIDTH + column[:, None]
        acc += tl.load(place, mask=live[None, :], other=0.0, cache_modifier=".cg")
        if HAS_NORM:
            place_of_squares = slot_ptr + M_TILE * WIDTH + local
            squares += tl.load(place_of_squares, mask=live, other=0.0, cache_modifier=".cg")
    return acc, squares


@triton.jit
def is_last_to_arrive(counter_ptr, SPLIT_K: tl.constexpr):
    """Count this program in; the last of SPLIT_K gets True and sets the counter back to 0 for the next launch.

    The barrier before makes the whole program's partial sums part of what the atomic releases.
    """
    tl.debug_barrier()
    arrived = tl.atomic_add(counter_ptr, 1, sem="acq_rel", scope="gpu")
    is_last = arrived == SPLIT_K - 1
    if is_last:
        tl.store(counter_ptr, 0)
    return is_last
