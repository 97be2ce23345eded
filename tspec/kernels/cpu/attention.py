"""Tree attention over paged KV: each node sees the committed prefix and its own ancestors.

    out[row, head] = sum over visible positions of softmax(scale * q . k) * v

Shapes    q, out: float32 [rows, num_heads, D] over dense rows; ancestors int64 [B, T]; caches as in kv_cache.py
Rows      independent, and independent of the tree: a row's keys are taken by position, not by slot. Scores sum
          over D in order; softmax rescales at each 64 positions (a tile) and is cut at each 256 (a chunk), both
          counted from position 0; values are added by position. So a node's bits are those of plain decoding.
Work      phase 1 claims (sequence, KV head, up to 32 query rows, chunk); phase 2 joins the chunks of a row
Cost      a tile of the prefix is read once for all query rows of an item; no mask is evaluated there
Oracle    tspec/kernels/reference/attention.py
Source    online softmax, arXiv:1805.02867; split over KV as in Flash-Decoding
"""

import numpy as np

from tspec.core.shapes import BLOCK_TOKENS
from tspec.kernels.cpu.host import read_host
from tspec.kernels.cpu.kv_cache import item_bytes, key_block, padded_dim, value_block
from tspec.kernels.cpu.register_block import make_product
from tspec.kernels.cpu.simd import (
    BF16,
    LANES,
    add,
    exp,
    first_lane,
    fma,
    largest,
    load,
    load_f32,
    load_i32,
    load_i64,
    maximum,
    mul,
    splat,
    store,
    store_f32,
    store_i64,
    sub,
    total,
)
from tspec.kernels.cpu.sync import atomic_add, barrier
from tspec.kernels.jit import native

CHUNK_TILES = 4
"""Tiles of one chunk. A constant: another value is another summation order."""

GROUP_ROWS = 32
"""Most query rows (node, head) of one item."""

ZERO, ONE, LOWEST = np.float32(0.0), np.float32(1.0), np.float32(-np.inf)

_LANES = read_host().lanes
_WIDE = 4 * _LANES
_HEIGHTS = (4, 2, 1) if read_host().row_blocks[0] == 8 else (2, 1)

_key_product = make_product(_HEIGHTS, paired=True, vectors=4, lanes=_LANES)
_value_wide = make_product(_HEIGHTS, paired=False, vectors=4, lanes=_LANES, accumulate=True)
_value_narrow = make_product(_HEIGHTS, paired=False, vectors=1, lanes=_LANES, accumulate=True)
_listed_wide = make_product((1,), paired=False, vectors=4, lanes=_LANES, accumulate=True, indexed=True)
_listed_narrow = make_product((1,), paired=False, vectors=1, lanes=_LANES, accumulate=True, indexed=True)


def scratch_bytes(head_dim: int) -> int:
    """Bytes of scratch that one thread needs."""
    lanes = (head_dim + LANES - 1) // LANES * LANES
    numbers = GROUP_ROWS * (head_dim + lanes + 3 * BLOCK_TOKENS + 2) + LANES
    return numbers * 4 + 2 * BLOCK_TOKENS * 8


def partial_bytes(num_heads: int, head_dim: int, rows: int, max_blocks: int) -> int:
    """Bytes of the partial results of all chunks: [rows, num_heads, chunks, max | sum | values]."""
    lanes = (head_dim + LANES - 1) // LANES * LANES
    chunks = (max_blocks + CHUNK_TILES - 1) // CHUNK_TILES
    return rows * num_heads * chunks * (lanes + LANES) * 4


@native()
def key_products(storage, queries, rows, keys, out, out_stride, head_dim):
    """Scores of `rows` queries [rows, D] with the 64 keys of a block, to out float32 [rows, out_stride]."""
    pair = 2 if storage == BF16 else 1
    step = BLOCK_TOKENS * pair * item_bytes(storage)
    for first in range(0, BLOCK_TOKENS, _WIDE):
        place = keys + first * pair * item_bytes(storage)
        _key_product(
            storage, queries, head_dim * 4, rows, place, step, head_dim // pair, out + first * 4, out_stride
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
        _value_wide(storage, weights, stride, rows, place, step, BLOCK_TOKENS, sums + first * 4, lanes * 4)
    for first in range(whole, lanes, _LANES):
        place = values + first * item_bytes(storage)
        _value_narrow(storage, weights, stride, rows, place, step, BLOCK_TOKENS, sums + first * 4, lanes * 4)


@native()
def listed_value_products(storage, weights, addresses, count, sums, head_dim):
    """sums [Dp] += weights [count] times the value rows at `addresses` int64 [count], in their order."""
    lanes = padded_dim(head_dim)
    whole = lanes - lanes % _WIDE
    for first in range(0, whole, _WIDE):
        offset = first * item_bytes(storage)
        _listed_wide(storage, weights, 0, 1, addresses, offset, count, sums + first * 4, 0)
    for first in range(whole, lanes, _LANES):
        offset = first * item_bytes(storage)
        _listed_narrow(storage, weights, 0, 1, addresses, offset, count, sums + first * 4, 0)


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


@native()
def list_path(ancestors, node, path):
    """Write the nodes from the root to `node` to path int64 [depth + 1]; returns depth."""
    mask = load_i64(ancestors + node * 8)
    depth = 0
    for other in range(node + 1):
        if (mask >> other) & 1:
            store_i64(path + depth * 8, other)
            depth += 1
    return depth - 1


@native()
def list_values(storage, v_cache, table, first, end, head, num_kv_heads, head_dim, addresses):
    """Write the addresses of the value rows in slots [first, end) of one tile to addresses[slot % 64]."""
    value_bytes = padded_dim(head_dim) * item_bytes(storage)
    block = load_i32(table + first // BLOCK_TOKENS * 4)
    values = value_block(v_cache, storage, block, head, num_kv_heads, head_dim)
    for slot in range(first, end):
        at = slot % BLOCK_TOKENS
        store_i64(addresses + at * 8, values + at * value_bytes)


@native()
def attend_row(
    storage, scores, state, sums, path, depth, prefix, window, tile, table, v_cache, head, num_kv_heads, head_dim,
    addresses, row_scores,
):  # fmt: skip
    """One row and one tile in which some positions are masked, or lie in slots of another order.

    `scores` are the row's scores with the slots from tile * 64 on; `addresses` has the value rows of those before
    the prefix's end. Positions behind it are looked up in `path`, the row's ancestors by depth.
    """
    position = prefix + depth
    first = tile * BLOCK_TOKENS
    start = max(first, position - window + 1) if window > 0 else first
    end = min(first + BLOCK_TOKENS, position + 1)
    if start >= end:
        return
    for at in range(0, BLOCK_TOKENS * 4, LANES * 4):
        store(row_scores + at, load(scores + at))
    value_bytes = padded_dim(head_dim) * item_bytes(storage)
    for at in range(max(start, prefix), end):
        slot = prefix + load_i64(path + (at - prefix) * 8)
        block = load_i32(table + slot // BLOCK_TOKENS * 4)
        values = value_block(v_cache, storage, block, head, num_kv_heads, head_dim)
        store_f32(row_scores + (at - first) * 4, load_f32(scores + (slot - first) * 4))
        store_i64(addresses + (at - first) * 8, values + slot % BLOCK_TOKENS * value_bytes)
    for at in range(start - first):
        store_f32(row_scores + at * 4, LOWEST)
    for at in range(end - first, BLOCK_TOKENS):
        store_f32(row_scores + at * 4, LOWEST)
    softmax_tile(row_scores, state, sums, padded_dim(head_dim))
    skipped = start - first
    listed_value_products(
        storage, row_scores + skipped * 4, addresses + skipped * 8, end - start, sums, head_dim
    )


@native()
def attend_item(
    storage, q, k_cache, v_cache, ancestors, table, prefix, num_nodes, head, group, chunk, num_heads,
    num_kv_heads, head_dim, window, scale, partials, max_chunks, scratch,
):  # fmt: skip
    """One item of phase 1: up to GROUP_ROWS query rows of one KV head, one chunk; see the module.

    `q` and `partials` start at the sequence's first dense row.
    """
    heads_a_group = num_heads // num_kv_heads
    first_row = group * GROUP_ROWS
    rows = min(GROUP_ROWS, num_nodes * heads_a_group - first_row)
    lanes = padded_dim(head_dim)
    scores = scratch
    sums = scores + GROUP_ROWS * 2 * BLOCK_TOKENS * 4
    row_scores = sums + GROUP_ROWS * lanes * 4
    queries = row_scores + BLOCK_TOKENS * 4
    state = queries + GROUP_ROWS * head_dim * 4
    addresses = state + GROUP_ROWS * 2 * 4
    path = addresses + BLOCK_TOKENS * 8
    for row in range(rows):
        node, member = (first_row + row) // heads_a_group, (first_row + row) % heads_a_group
        source = q + (node * num_heads + head * heads_a_group + member) * head_dim * 4
        for dim in range(head_dim):
            store_f32(queries + (row * head_dim + dim) * 4, load_f32(source + dim * 4) * scale)
        store_f32(state + row * 8, LOWEST)
        store_f32(state + row * 8 + 4, ZERO)
        for lane in range(0, lanes * 4, LANES * 4):
            store(sums + row * lanes * 4 + lane, splat(ZERO))
    last_tile = min((chunk + 1) * CHUNK_TILES - 1, (prefix + num_nodes - 1) // BLOCK_TOKENS)
    uncut = (prefix + num_nodes - window) // BLOCK_TOKENS + 1 if window > 0 else 0
    for tile in range(chunk * CHUNK_TILES, last_tile + 1):
        block = load_i32(table + tile * 4)
        keys = key_block(k_cache, storage, block, head, num_kv_heads, head_dim)
        if tile < prefix // BLOCK_TOKENS and tile >= uncut:
            key_products(storage, queries, rows, keys, scores, BLOCK_TOKENS * 4, head_dim)
            for row in range(rows):
                softmax_tile(scores + row * BLOCK_TOKENS * 4, state + row * 8, sums + row * lanes * 4, lanes)
            values = value_block(v_cache, storage, block, head, num_kv_heads, head_dim)
            value_products(storage, scores, rows, values, sums, head_dim)
            continue
        if window > 0 and (tile + 1) * BLOCK_TOKENS <= prefix - window + 1:
            continue
        wide = 2 * BLOCK_TOKENS * 4
        key_products(storage, queries, rows, keys, scores, wide, head_dim)
        if (prefix + num_nodes - 1) // BLOCK_TOKENS > tile:
            block = load_i32(table + (tile + 1) * 4)
            keys = key_block(k_cache, storage, block, head, num_kv_heads, head_dim)
            key_products(storage, queries, rows, keys, scores + BLOCK_TOKENS * 4, wide, head_dim)
        first = tile * BLOCK_TOKENS
        list_values(
            storage, v_cache, table, first, min(first + BLOCK_TOKENS, prefix), head, num_kv_heads, head_dim, addresses
        )
        depth, listed = 0, -1
        for row in range(rows):
            node = (first_row + row) // heads_a_group
            if node != listed:
                depth, listed = list_path(ancestors, node, path), node
            attend_row(
                storage, scores + row * wide, state + row * 8, sums + row * lanes * 4, path, depth, prefix,
                window, tile, table, v_cache, head, num_kv_heads, head_dim, addresses, row_scores,
            )  # fmt: skip
    for row in range(rows):
        node, member = (first_row + row) // heads_a_group, (first_row + row) % heads_a_group
        index = (node * num_heads + head * heads_a_group + member) * max_chunks + chunk
        partial = partials + index * (lanes + LANES) * 4
        store_f32(partial, load_f32(state + row * 8))
        store_f32(partial + 4, load_f32(state + row * 8 + 4))
        for lane in range(0, lanes * 4, LANES * 4):
            store(partial + (LANES * 4) + lane, load(sums + row * lanes * 4 + lane))


@native()
def join_chunks(out, partials, chunks, head_dim, values):
    """out [D] = the chunks' values, weighted by exp(max of the chunk - max of all), over the weighted sums.

    `partials` float32 [chunks, max | sum | … | values]; chunks with nothing visible have sum 0 and are skipped.
    `values` is scratch of [Dp].
    """
    lanes = padded_dim(head_dim)
    size = (lanes + LANES) * 4
    top = LOWEST
    for chunk in range(chunks):
        top = max(top, load_f32(partials + chunk * size))
    weight_sum = ZERO
    for lane in range(0, lanes * 4, LANES * 4):
        store(values + lane, splat(ZERO))
    for chunk in range(chunks):
        partial = partials + chunk * size
        if load_f32(partial + 4) > ZERO:
            weight = exp(splat(load_f32(partial) - top))
            weight_sum += load_f32(partial + 4) * first_lane(weight)
            for lane in range(0, lanes * 4, LANES * 4):
                store(values + lane, fma(load(partial + LANES * 4 + lane), weight, load(values + lane)))
    for dim in range(head_dim):
        store_f32(out + dim * 4, load_f32(values + dim * 4) / weight_sum)


@native()
def num_items(prefix, num_nodes, heads_a_group, num_kv_heads):
    """(groups, chunks) of one sequence: phase 1 has num_kv_heads * groups * chunks items for it."""
    groups = (num_nodes * heads_a_group + GROUP_ROWS - 1) // GROUP_ROWS
    chunks = (prefix + num_nodes - 1) // (BLOCK_TOKENS * CHUNK_TILES) + 1
    return groups, chunks


@native()
def tree_attention(
    control, counter, join_counter, num_threads, num_rows, row_seq, row_start, storage,
    out, q, k_cache, v_cache, ancestors, prefix_len, num_nodes, block_table, num_sequences, max_nodes, max_blocks,
    head_dim, num_heads, num_kv_heads, window, scale, partials, scratch,
):  # fmt: skip
    """See the module. `window` is 0 for full attention. Dense rows: sequence `seq` starts at row_start[seq]."""
    heads_a_group = num_heads // num_kv_heads
    max_chunks = (max_blocks + CHUNK_TILES - 1) // CHUNK_TILES
    partial_row = num_heads * max_chunks * (padded_dim(head_dim) + LANES) * 4
    work = atomic_add(counter, 1)
    seq, before = 0, 0
    while seq < num_sequences:
        prefix, nodes = load_i32(prefix_len + seq * 4), load_i32(num_nodes + seq * 4)
        groups, chunks = num_items(prefix, nodes, heads_a_group, num_kv_heads)
        if work - before >= groups * chunks * num_kv_heads:
            before += groups * chunks * num_kv_heads
            seq += 1
            continue
        item = work - before
        first = load_i32(row_start + seq * 4)
        attend_item(
            storage, q + first * num_heads * head_dim * 4, k_cache, v_cache, ancestors + seq * max_nodes * 8,
            block_table + seq * max_blocks * 4, prefix, nodes, item % num_kv_heads,
            item // num_kv_heads % groups, item // num_kv_heads // groups, num_heads, num_kv_heads, head_dim,
            window, scale, partials + first * partial_row, max_chunks, scratch,
        )  # fmt: skip
        work = atomic_add(counter, 1)
    barrier(control, num_threads)
    work = atomic_add(join_counter, num_heads)
    while work < num_rows * num_heads:
        row = work // num_heads
        seq = load_i32(row_seq + row * 4)
        prefix, nodes = load_i32(prefix_len + seq * 4), load_i32(num_nodes + seq * 4)
        _, chunks = num_items(prefix, nodes, heads_a_group, num_kv_heads)
        for head in range(num_heads):
            target = out + (row * num_heads + head) * head_dim * 4
            parts = partials + row * partial_row + head * (partial_row // num_heads)
            join_chunks(target, parts, chunks, head_dim, scratch)
        work = atomic_add(join_counter, num_heads)
