"""The steps of attention over one tile of 64 slots: rotate heads, read a tile, take its scores into the softmax.

Operands are transposed: keys are the 64 rows of each product and queries its narrow side, so that one shape of
tensor-core instruction serves 1 to 64 query rows. Scores are [slot, query row], sums [dim, query row].
"""

import triton
import triton.language as tl

from tspec.core.shapes import BLOCK_TOKENS
from tspec.kernels.cuda.interpret import dot

_TILE = tl.constexpr(BLOCK_TOKENS)
_PIECE = tl.constexpr(16)
"""Nodes whose keys and values are written at a time."""


@triton.jit
def load_halves(ptr, offset, live, HEAD_DIM: tl.constexpr, HALF: tl.constexpr):
    """Both halves of a head a row, [rows, HALF] each: zeros in rows that are not live and past HEAD_DIM / 2."""
    dim = tl.arange(0, HALF)
    mask = live[:, None] & (dim < HEAD_DIM // 2)[None, :]
    low = ptr + offset[:, None] + dim[None, :]
    return tl.load(low, mask=mask, other=0.0), tl.load(low + HEAD_DIM // 2, mask=mask, other=0.0)


@triton.jit
def rotate_heads(
    low, high, position, live, cos_ptr, sin_ptr, norm_ptr, eps,
    HEAD_DIM: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    """RMSNorm of each row where there is one, then its rotation by the angle of `position`, in float32.

    The sum of squares is taken in float64: its rounding, and so the layout of the rows, does not show in float32.
    """
    dim = tl.arange(0, HALF)
    inside = dim < HEAD_DIM // 2
    low, high = low.to(tl.float32), high.to(tl.float32)
    if norm_ptr is not None:
        squares = low * low + high * high
        mean = (tl.sum(squares.to(tl.float64), axis=1) / HEAD_DIM).to(tl.float32)
        rstd = tl.rsqrt(mean + eps)[:, None]
        low = low * rstd * tl.load(norm_ptr + dim, mask=inside, other=0.0)[None, :]
        high = high * rstd * tl.load(norm_ptr + HEAD_DIM // 2 + dim, mask=inside, other=0.0)[None, :]
    angle = position.to(tl.int64)[:, None] * (HEAD_DIM // 2) + dim[None, :]
    mask = live[:, None] & inside[None, :]
    cos = tl.load(cos_ptr + angle, mask=mask, other=0.0)
    sin = tl.load(sin_ptr + angle, mask=mask, other=0.0)
    return low * cos - high * sin, high * cos + low * sin


@triton.jit
def tile_offset(block, head, HEADS: tl.constexpr, HEAD_DIM: tl.constexpr):
    """Elements before the tile of one KV head in a cache, which may hold more than 2**31."""
    return (block.to(tl.int64) * HEADS + head) * (_TILE * HEAD_DIM)


@triton.jit
def write_nodes(
    k_ptr, v_ptr, qkv_ptr, cos_ptr, sin_ptr, k_norm_ptr, eps, depth_ptr, table, flat, prefix, first_node,
    start, end, kv_head,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, HALF: tl.constexpr, DIMS: tl.constexpr,
):  # fmt: skip
    """Store keys and values of nodes [start, end) of one KV head; `flat` is the first node of the sequence.

    They lie behind the prefix and the `first_node` nodes of the same tree that are there already.
    """
    dim, half = tl.arange(0, DIMS), tl.arange(0, HALF)
    for first in tl.range(start, end, _PIECE, num_stages=1):
        node = first + tl.arange(0, _PIECE)
        live = node < end
        depth = tl.load(depth_ptr + flat + node, mask=live, other=0)
        source = (flat + node) * ((HEADS + 2 * KV_HEADS) * HEAD_DIM) + (HEADS + kv_head) * HEAD_DIM
        slot = prefix + first_node + node
        block = tl.load(table + slot // _TILE, mask=live, other=0)
        target = tile_offset(block, kv_head, KV_HEADS, HEAD_DIM) + slot % _TILE * HEAD_DIM
        low, high = load_halves(qkv_ptr, source, live, HEAD_DIM, HALF)
        low, high = rotate_heads(
            low, high, prefix + depth, live, cos_ptr, sin_ptr, k_norm_ptr, eps, HEAD_DIM, HALF
        )
        keys = k_ptr + target[:, None] + half[None, :]
        mask = live[:, None] & (half < HEAD_DIM // 2)[None, :]
        tl.store(keys, low.to(k_ptr.dtype.element_ty), mask=mask)
        tl.store(keys + HEAD_DIM // 2, high.to(k_ptr.dtype.element_ty), mask=mask)
        mask = live[:, None] & (dim < HEAD_DIM)[None, :]
        v = tl.load(qkv_ptr + (source + KV_HEADS * HEAD_DIM)[:, None] + dim[None, :], mask=mask, other=0.0)
        tl.store(v_ptr + target[:, None] + dim[None, :], v.to(v_ptr.dtype.element_ty), mask=mask)


@triton.jit
def load_tile(
    k_ptr, v_ptr, block, head, seen,
    HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, HALF: tl.constexpr, DIMS: tl.constexpr,
):  # fmt: skip
    """Low and high halves of the keys [64, HALF], and values [64, DIMS].

    `seen`: [64], which slots some row sees, None for all. Values of others are zeros, keys whatever lies there.
    """
    slot, dim, half = tl.arange(0, _TILE), tl.arange(0, DIMS), tl.arange(0, HALF)
    offset = tile_offset(block, head, HEADS, HEAD_DIM)
    keys = k_ptr + offset + slot[:, None] * HEAD_DIM + half[None, :]
    values = v_ptr + offset + slot[:, None] * HEAD_DIM + dim[None, :]
    inside = (dim < HEAD_DIM)[None, :]
    if seen is not None:
        inside = inside & seen[:, None]
    if HALF * 2 == HEAD_DIM:
        low, high = tl.load(keys), tl.load(keys + HALF)
    else:
        mask = (half < HEAD_DIM // 2)[None, :]
        low = tl.load(keys, mask=mask, other=0.0)
        high = tl.load(keys + HEAD_DIM // 2, mask=mask, other=0.0)
    if seen is None and DIMS == HEAD_DIM:
        return low, high, tl.load(values)
    return low, high, tl.load(values, mask=inside, other=0.0)


@triton.jit
def count_bits(word):
    """How many bits of each uint64 are set; int32."""
    word = word - ((word >> 1) & 0x5555555555555555)
    word = (word & 0x3333333333333333) + ((word >> 2) & 0x3333333333333333)
    word = (word + (word >> 4)) & 0x0F0F0F0F0F0F0F0F
    return ((word * 0x0101010101010101) >> 56).to(tl.int32)


@triton.jit
def seen_slots(slot, prefix, nodes, lines, FIRST_SLOT: tl.constexpr):
    """[64]: which slots of a tile with nodes any row of the program sees; `lines` are the ancestors of all of them.

    Between the levels of a tree lie slots that nothing was written to, where a level had fewer nodes than its width.
    """
    node = tl.minimum(tl.maximum(slot - prefix, 0), nodes - 1).to(tl.int64)
    return (slot >= FIRST_SLOT) & ((slot < prefix) | ((slot < prefix + nodes) & ((lines >> node) & 1 == 1)))


@triton.jit
def visible_slots(slot, prefix, nodes, ancestors, position, WINDOW: tl.constexpr, FIRST_SLOT: tl.constexpr):
    """[64, rows]: which slots of a tile with nodes each row sees; `nodes` with those of levels before.

    A window counts positions, not slots: as many lie between an ancestor and the row as ancestors that come after it.
    """
    node = tl.minimum(tl.maximum(slot - prefix, 0), nodes - 1)
    line = ancestors.to(tl.uint64)[None, :] >> node.to(tl.uint64)[:, None]
    visible = (slot < prefix)[:, None] | ((slot < prefix + nodes)[:, None] & ((line & 1) == 1))
    if WINDOW > 0:
        distance = tl.where((slot < prefix)[:, None], position[None, :] - slot[:, None], count_bits(line) - 1)
        visible = visible & (distance < WINDOW)
    if FIRST_SLOT > 0:
        visible = visible & (slot >= FIRST_SLOT)[:, None]
    return visible


@triton.jit
def tile_scores(k_low, k_high, q_low, q_high, scale_log2):
    """[64, rows] scores of the keys of a tile, in units of log2."""
    scores = tl.zeros([k_low.shape[0], q_low.shape[1]], tl.float32)
    scores = dot(k_low, q_low, scores)
    return dot(k_high, q_high, scores) * scale_log2


@triton.jit
def add_tile(scores, v, top, weight, sums):
    """Take one tile into the running softmax: (largest score, sum of weights, weighted sum of values) a row.

    A masked score is -inf and adds exactly nothing; a row may have seen no key yet.
    """
    now = tl.maximum(top, tl.max(scores, axis=0))
    shift = tl.where(now == float("-inf"), 0.0, now)
    shrink = tl.exp2(top - shift)
    p = tl.exp2(scores - shift[None, :])
    weight = weight * shrink + tl.sum(p, axis=0)
    sums = dot(tl.trans(v), p.to(v.dtype), sums * shrink[None, :])
    return now, weight, sums
