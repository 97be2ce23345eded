"""Partial sums of attention: written by each chunk's program, joined in chunk order by the last to arrive.

Not the softmax of a tile: that is attention_tile.py. A partial is float32 [largest score | sum of weights | sums],
of [ROWS], [ROWS] and [DIMS, ROWS].

Memory    a program's threads write their parts and meet at a barrier; then one thread counts the program in with an
          acquire-release atomic at the scope of the device, and the result reaches the others through a second
          barrier. Barriers and atomics order what was written before with what is read after, in every thread. The
          loads skip L1, which may hold what an earlier launch left there.
"""

import triton
import triton.language as tl


@triton.jit
def store_partial(ptr, chunk, top, weight, sums, DIMS: tl.constexpr, ROWS: tl.constexpr):
    """Write the partial of one chunk; `ptr` is where those of its rows start."""
    row, dim = tl.arange(0, ROWS), tl.arange(0, DIMS)
    ptr += chunk * ((DIMS + 2) * ROWS)
    tl.store(ptr + row, top)
    tl.store(ptr + ROWS + row, weight)
    tl.store(ptr + 2 * ROWS + dim[:, None] * ROWS + row[None, :], sums)


@triton.jit
def last_to_arrive(counter_ptr, expected):
    """Count this program in. The last of `expected` gets True and leaves the counter at 0 for the next launch."""
    tl.debug_barrier()
    is_last = tl.atomic_add(counter_ptr, 1, sem="acq_rel", scope="gpu") == expected - 1
    if is_last:
        tl.store(counter_ptr, 0)
    return is_last


@triton.jit
def join_partials(ptr, first_chunk, end_chunk, DIMS: tl.constexpr, ROWS: tl.constexpr):
    """Sum of weights and sums over the chunks, each scaled to the largest score of all, first chunk first.

    A chunk in which a row sees nothing has weight 0 and adds exactly nothing.
    """
    SLOT: tl.constexpr = (DIMS + 2) * ROWS
    row, dim = tl.arange(0, ROWS), tl.arange(0, DIMS)
    top = tl.full([ROWS], float("-inf"), tl.float32)
    for chunk in range(first_chunk, end_chunk):
        top = tl.maximum(top, tl.load(ptr + chunk * SLOT + row, cache_modifier=".cg"))
    top = tl.where(top == float("-inf"), 0.0, top)
    weight = tl.zeros([ROWS], tl.float32)
    sums = tl.zeros([DIMS, ROWS], tl.float32)
    for chunk in range(first_chunk, end_chunk):
        part = ptr + chunk * SLOT
        factor = tl.exp2(tl.load(part + row, cache_modifier=".cg") - top)
        weight += tl.load(part + ROWS + row, cache_modifier=".cg") * factor
        part += 2 * ROWS
        sums += tl.load(part + dim[:, None] * ROWS + row[None, :], cache_modifier=".cg") * factor[None, :]
    return weight, sums


@triton.jit
def store_out(out_ptr, offset, values, live, inside, HEAD_DIM: tl.constexpr, DIMS: tl.constexpr):
    """Write values [DIMS, rows] to heads at `offset`: zeros in rows that are padding, none outside the bucket."""
    dim = tl.arange(0, DIMS)
    values = tl.where(live[None, :], values, 0.0).to(out_ptr.dtype.element_ty)
    mask = inside[None, :] & (dim < HEAD_DIM)[:, None]
    tl.store(out_ptr + offset[None, :] + dim[:, None], values, mask=mask)
