"""One tile of attention: scores of 64 keys, the running softmax, and the sums of values.

Part of attention.py, which has the contract. A tile is one KV block: 64 positions.
"""

from typing import NamedTuple

import numpy as np

from tspec.core.shapes import BLOCK_TOKENS
from tspec.kernels.cpu.host import read_host
from tspec.kernels.cpu.kv_cache import item_bytes, padded_dim
from tspec.kernels.cpu.register_block import make_product
from tspec.kernels.cpu.simd import (
    BF16,
    LANES,
    add,
    exp,
    first_lane,
    largest,
    load,
    load_f32,
    maximum,
    mul,
    splat,
    store,
    store_f32,
    sub,
    total,
)
from tspec.kernels.jit import native

GROUP_ROWS = 32
"""Most query rows (node, head) that share the tiles they read, and what scratch is made for."""

ZERO = np.float32(0.0)

_LANES = read_host().lanes
_WIDE = 4 * _LANES
_HEIGHTS = (4, 2, 1) if read_host().row_blocks[0] == 8 else (2, 1)
TALLEST = _HEIGHTS[0]

_key_product = make_product(_HEIGHTS, paired=True, vectors=4, lanes=_LANES)
_value_wide = make_product(_HEIGHTS, paired=False, vectors=4, lanes=_LANES, accumulate=True)
_value_narrow = make_product(_HEIGHTS, paired=False, vectors=1, lanes=_LANES, accumulate=True)
_listed_wide = make_product((1,), paired=False, vectors=4, lanes=_LANES, accumulate=True, indexed=True)
_listed_narrow = make_product((1,), paired=False, vectors=1, lanes=_LANES, accumulate=True, indexed=True)


class Scratch(NamedTuple):
    """Where one thread keeps a group of query rows. All are addresses.

    queries     float32 [GROUP_ROWS, D], scaled
    scores      float32 [GROUP_ROWS, 2 tiles]
    state       float32 [GROUP_ROWS, 2]: the running max and sum of weights
    sums        float32 [GROUP_ROWS, Dp]: weighted values
    row_scores  float32 [64] of one row, by position
    addresses   int64 [64]: value rows, by position
    path        int64 [64]: the nodes from the root to one node
    """

    queries: int
    scores: int
    state: int
    sums: int
    row_scores: int
    addresses: int
    path: int


def scratch_bytes(head_dim: int) -> int:
    """Bytes of scratch that one thread needs."""
    lanes = (head_dim + LANES - 1) // LANES * LANES
    return GROUP_ROWS * (head_dim + 2 * BLOCK_TOKENS + 2 + lanes) * 4 + BLOCK_TOKENS * (4 + 8 + 8)


@native()
def carve_scratch(start, head_dim):
    """Lay the parts of a thread's scratch one behind the other."""
    scores = start + GROUP_ROWS * head_dim * 4
    state = scores + GROUP_ROWS * 2 * BLOCK_TOKENS * 4
    sums = state + GROUP_ROWS * 2 * 4
    row_scores = sums + GROUP_ROWS * padded_dim(head_dim) * 4
    addresses = row_scores + BLOCK_TOKENS * 4
    return Scratch(start, scores, state, sums, row_scores, addresses, addresses + BLOCK_TOKENS * 8)


@native()
def key_products(storage, queries, rows, keys, out, out_stride, head_dim):
    """Scores of `rows` queries [rows, D] with the 64 keys of a block, to out float32 [rows, out_stride]."""
    pair = 2 if storage == BF16 else 1
    step = BLOCK_TOKENS * pair * item_bytes(storage)
    for first in range(0, BLOCK_TOKENS, _WIDE):
        place = keys + first * pair * item_bytes(storage)
        _key_product(
            storage,
            queries,
            head_dim * 4,
            rows,
            place,
            step,
            head_dim // pair,
            out + first * 4,
            out_stride,
            TALLEST,
            0,
        )


@native()
def value_products(storage, weights, rows, values, sums, head_dim):
    """sums [rows, Dp] += weights [rows, 64] times the 64 value rows of a block."""
    lanes = padded_dim(head_dim)
    step = lanes * item_bytes(storage)
    stride = BLOCK_TOKENS * 4
    whole = lanes - lanes % _WIDE
    for first in range(0, whole, _WIDE):
        place = values + first * item_bytes(storage)
        _value_wide(
            storage, weights, stride, rows, place, step, BLOCK_TOKENS, sums + first * 4, lanes * 4, TALLEST, 0
        )
    for first in range(whole, lanes, _LANES):
        place = values + first * item_bytes(storage)
        _value_narrow(
            storage, weights, stride, rows, place, step, BLOCK_TOKENS, sums + first * 4, lanes * 4, TALLEST, 0
        )


@native()
def listed_value_products(storage, weights, addresses, count, sums, head_dim):
    """sums [Dp] += weights [count] times the value rows at `addresses` int64 [count], in their order."""
    lanes = padded_dim(head_dim)
    whole = lanes - lanes % _WIDE
    for first in range(0, whole, _WIDE):
        offset = first * item_bytes(storage)
        _listed_wide(storage, weights, 0, 1, addresses, offset, count, sums + first * 4, 0, 1, 0)
    for first in range(whole, lanes, _LANES):
        offset = first * item_bytes(storage)
        _listed_narrow(storage, weights, 0, 1, addresses, offset, count, sums + first * 4, 0, 1, 0)


@native()
def softmax_tile(scores, state, sums, lanes):
    """Take one tile of 64 scores (-inf where masked) into a row's running softmax.

    In place: scores become weights exp(score - max); state [max, sum] and sums [Dp] are rescaled to the new max.
    """
    top = maximum(
        maximum(load(scores), load(scores + LANES * 4)),
        maximum(load(scores + 2 * LANES * 4), load(scores + 3 * LANES * 4)),
    )
    before = load_f32(state)
    now = max(before, largest(top))
    shrink = exp(splat(before - now))
    weights = splat(ZERO)
    for part in range(0, BLOCK_TOKENS * 4, LANES * 4):
        weight = exp(sub(load(scores + part), splat(now)))
        store(scores + part, weight)
        weights = add(weights, weight)
    store_f32(state, now)
    store_f32(state + 4, load_f32(state + 4) * first_lane(shrink) + total(weights))
    for lane in range(0, lanes * 4, LANES * 4):
        store(sums + lane, mul(load(sums + lane), shrink))
