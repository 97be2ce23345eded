"""Tree attention over paged KV: each node sees the committed prefix and its own ancestors.

    out[row, head] = sum over visible positions of softmax(scale * q . k) * v

Shapes    q, out: float32 [rows, num_heads, D] over dense rows, q with gaps; ancestors int64 [B, T]; caches as in
          kv_cache.py
Rows      independent, and independent of the tree: a row's keys are taken by position, not by slot. Scores sum
          over D in order; softmax rescales at each 64 positions (a tile) and is cut at each 256 (a chunk), both
          counted from position 0; values are added by position. So a node's bits are those of plain decoding.
Work      phase 1 claims (sequence, KV head, `group_rows` query rows, chunk); phase 2 joins the chunks of a row
Cost      a tile of the prefix is read once for all query rows of an item; no mask is evaluated there
Oracle    tspec/kernels/reference/attention.py
Source    online softmax, arXiv:1805.02867; split over KV as in Flash-Decoding
"""

from typing import NamedTuple

import numpy as np

from tspec.core.shapes import BLOCK_TOKENS
from tspec.kernels.cpu.attention_tiles import (
    carve_scratch,
    key_products,
    listed_value_products,
    softmax_tile,
    value_products,
)
from tspec.kernels.cpu.kv_cache import item_bytes, key_block, padded_dim, value_block
from tspec.kernels.cpu.simd import (
    LANES,
    exp,
    first_lane,
    fma,
    load,
    load_f32,
    load_i32,
    load_i64,
    splat,
    store,
    store_f32,
    store_i64,
)
from tspec.kernels.cpu.sync import atomic_add, barrier
from tspec.kernels.jit import native

CHUNK_TILES = 4
"""Tiles of one chunk. A constant: another value is another summation order."""

ZERO, LOWEST = np.float32(0.0), np.float32(-np.inf)


class Caches(NamedTuple):
    """The KV memory of one layer: storage code, addresses, sizes."""

    storage: int
    keys: int
    values: int
    num_kv_heads: int
    head_dim: int


class Tree(NamedTuple):
    """One sequence.

    ancestors   address of the masks of the nodes that attend: those from `first_node` of their tree on
    table       address of its block table
    prefix      committed tokens
    slots       prefix, and all nodes of the tree up to the last of these
    window      0 for none
    first_slot  slots before it hold nothing; only a chain may stand there, whose slots are its positions
    """

    ancestors: int
    table: int
    prefix: int
    first_node: int
    slots: int
    window: int
    first_slot: int


class Group(NamedTuple):
    """Query rows that are worked on together: of one KV head, row `first` to `first + rows` in (node, head) order."""

    head: int
    first: int
    rows: int
    heads_a_group: int


def partial_bytes(num_heads: int, head_dim: int, rows: int, max_blocks: int) -> int:
    """Bytes of the partial results of all chunks: [rows, num_heads, chunks, max | sum | values]."""
    lanes = (head_dim + LANES - 1) // LANES * LANES
    chunks = (max_blocks + CHUNK_TILES - 1) // CHUNK_TILES
    return rows * num_heads * chunks * (lanes + LANES) * 4


@native()
def list_path(mask, node, path):
    """Write the nodes from the root to `node`, whose ancestors are in `mask`, to path int64 [depth + 1]; returns depth.

    In a tree that begins below the root, those from the root's child on, whose depth is 0.
    """
    depth = 0
    for other in range(node + 1):
        if (mask >> other) & 1:
            store_i64(path + depth * 8, other)
            depth += 1
    return depth - 1


@native()
def block_of(tree, slot):
    """The KV block of a slot."""
    return load_i32(tree.table + slot // BLOCK_TOKENS * 4)


@native()
def keys_of(caches, tree, tile, head):
    """Address of one head's keys in one tile."""
    block = block_of(tree, tile * BLOCK_TOKENS)
    return key_block(caches.keys, caches.storage, block, head, caches.num_kv_heads, caches.head_dim)


@native()
def value_row(caches, tree, slot, head):
    """Address of one head's value in one slot."""
    block = block_of(tree, slot)
    values = value_block(caches.values, caches.storage, block, head, caches.num_kv_heads, caches.head_dim)
    return values + slot % BLOCK_TOKENS * padded_dim(caches.head_dim) * item_bytes(caches.storage)


@native()
def start_group(group, q, q_stride, scale, head_dim, scratch):
    """Take in the scaled queries, and clear the softmax state and the sums."""
    lanes = padded_dim(head_dim)
    for row in range(group.rows):
        node, member = (group.first + row) // group.heads_a_group, (group.first + row) % group.heads_a_group
        source = q + node * q_stride + (group.head * group.heads_a_group + member) * head_dim * 4
        for dim in range(head_dim):
            store_f32(scratch.queries + (row * head_dim + dim) * 4, load_f32(source + dim * 4) * scale)
        store_f32(scratch.state + row * 8, LOWEST)
        store_f32(scratch.state + row * 8 + 4, ZERO)
        for lane in range(0, lanes * 4, LANES * 4):
            store(scratch.sums + row * lanes * 4 + lane, splat(ZERO))


@native()
def attend_full_tile(caches, tree, group, tile, scratch):
    """A tile that all rows see whole, in slots of its positions."""
    storage, head_dim, lanes = caches.storage, caches.head_dim, padded_dim(caches.head_dim)
    keys = keys_of(caches, tree, tile, group.head)
    key_products(storage, scratch.queries, group.rows, keys, scratch.scores, BLOCK_TOKENS * 4, head_dim)
    for row in range(group.rows):
        weights, sums = scratch.scores + row * BLOCK_TOKENS * 4, scratch.sums + row * lanes * 4
        softmax_tile(weights, scratch.state + row * 8, sums, lanes)
    values = value_row(caches, tree, tile * BLOCK_TOKENS, group.head)
    value_products(storage, scratch.scores, group.rows, values, scratch.sums, head_dim)


@native()
def attend_ragged_tile(caches, tree, group, tile, scratch):
    """A tile in which some positions are masked for some rows, or lie in slots of another order.

    A node's slot is at or behind its position, by less than a tile: scores of two tiles of slots cover one of
    positions.
    """
    stride = 2 * BLOCK_TOKENS * 4
    keys = keys_of(caches, tree, tile, group.head)
    key_products(caches.storage, scratch.queries, group.rows, keys, scratch.scores, stride, caches.head_dim)
    if (tree.slots - 1) // BLOCK_TOKENS > tile:
        keys, behind = keys_of(caches, tree, tile + 1, group.head), scratch.scores + BLOCK_TOKENS * 4
        key_products(caches.storage, scratch.queries, group.rows, keys, behind, stride, caches.head_dim)
    first = tile * BLOCK_TOKENS
    for slot in range(first, min(first + BLOCK_TOKENS, tree.prefix)):
        store_i64(scratch.addresses + (slot - first) * 8, value_row(caches, tree, slot, group.head))
    depth, listed = 0, -1
    for row in range(group.rows):
        node = (group.first + row) // group.heads_a_group
        if node != listed:
            mask = load_i64(tree.ancestors + node * 8)
            depth, listed = list_path(mask, tree.first_node + node, scratch.path), node
        attend_row(caches, tree, group.head, row, depth, tile, scratch)


@native()
def attend_row(caches, tree, head, row, depth, tile, scratch):
    """One row of `attend_ragged_tile`. Positions behind the prefix are looked up in the row's path, by depth."""
    position, first = tree.prefix + depth, tile * BLOCK_TOKENS
    start = max(first, tree.first_slot)
    if tree.window > 0:
        start = max(start, position - tree.window + 1)
    end = min(first + BLOCK_TOKENS, position + 1)
    if start >= end:
        return
    scores, mine = scratch.scores + row * 2 * BLOCK_TOKENS * 4, scratch.row_scores
    for at in range(0, BLOCK_TOKENS * 4, LANES * 4):
        store(mine + at, load(scores + at))
    for at in range(max(start, tree.prefix), end):
        slot = tree.prefix + load_i64(scratch.path + (at - tree.prefix) * 8)
        store_f32(mine + (at - first) * 4, load_f32(scores + (slot - first) * 4))
        store_i64(scratch.addresses + (at - first) * 8, value_row(caches, tree, slot, head))
    for at in range(start - first):
        store_f32(mine + at * 4, LOWEST)
    for at in range(end - first, BLOCK_TOKENS):
        store_f32(mine + at * 4, LOWEST)
    lanes = padded_dim(caches.head_dim)
    sums = scratch.sums + row * lanes * 4
    softmax_tile(mine, scratch.state + row * 8, sums, lanes)
    seen, addresses = mine + (start - first) * 4, scratch.addresses + (start - first) * 8
    listed_value_products(caches.storage, seen, addresses, end - start, sums, caches.head_dim)


@native()
def attend_chunk(caches, tree, group, chunk, scratch):
    """All tiles of one chunk that the group's rows may see."""
    last = min((chunk + 1) * CHUNK_TILES - 1, (tree.slots - 1) // BLOCK_TOKENS)
    first = max(chunk * CHUNK_TILES, tree.first_slot // BLOCK_TOKENS)
    first_full = (tree.first_slot + BLOCK_TOKENS - 1) // BLOCK_TOKENS
    if tree.window > 0:
        # The window of the root starts first, that of the deepest node last.
        first = max(first, (tree.prefix - tree.window + 1) // BLOCK_TOKENS)
        first_full = max(first_full, (tree.slots - tree.window) // BLOCK_TOKENS + 1)
    for tile in range(first, last + 1):
        if first_full <= tile < tree.prefix // BLOCK_TOKENS:
            attend_full_tile(caches, tree, group, tile, scratch)
        else:
            attend_ragged_tile(caches, tree, group, tile, scratch)


@native()
def write_partials(group, chunk, max_chunks, num_heads, head_dim, partials, scratch):
    """Put the group's softmax state and sums where `join_chunks` finds them."""
    lanes = padded_dim(head_dim)
    for row in range(group.rows):
        node, member = (group.first + row) // group.heads_a_group, (group.first + row) % group.heads_a_group
        index = (node * num_heads + group.head * group.heads_a_group + member) * max_chunks + chunk
        partial = partials + index * (lanes + LANES) * 4
        store_f32(partial, load_f32(scratch.state + row * 8))
        store_f32(partial + 4, load_f32(scratch.state + row * 8 + 4))
        for lane in range(0, lanes * 4, LANES * 4):
            store(partial + LANES * 4 + lane, load(scratch.sums + row * lanes * 4 + lane))


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
def num_items(slots, num_nodes, heads_a_group, group_rows):
    """(groups, chunks) of one sequence: phase 1 has groups * chunks items for each of its KV heads."""
    groups = (num_nodes * heads_a_group + group_rows - 1) // group_rows
    chunks = (slots - 1) // (BLOCK_TOKENS * CHUNK_TILES) + 1
    return groups, chunks


@native()
def tree_attention(
    control, counter, join_counter, num_threads, num_rows, row_seq, row_start, out, q, q_stride, caches, ancestors,
    prefix_len, num_nodes, block_table, num_sequences, max_nodes, max_blocks, num_heads, window, scale, partials,
    scratch, first_node, first_slot, group_rows,
):  # fmt: skip
    """See the module. `window` is 0 for full attention. Dense rows: sequence `seq` starts at row_start[seq].

    first_node  where the rows are a level of a draft's tree: its nodes in the levels before this one
    group_rows  query rows of an item of phase 1, at most attention_tiles.GROUP_ROWS
    """
    heads_a_group, max_chunks = (
        num_heads // caches.num_kv_heads,
        (max_blocks + CHUNK_TILES - 1) // CHUNK_TILES,
    )
    partial_row = num_heads * max_chunks * (padded_dim(caches.head_dim) + LANES) * 4
    parts = carve_scratch(scratch, caches.head_dim)
    work = atomic_add(counter, 1)
    seq, before = 0, 0
    while seq < num_sequences:
        prefix, nodes = load_i32(prefix_len + seq * 4), load_i32(num_nodes + seq * 4)
        slots = prefix + first_node + nodes
        groups, chunks = num_items(slots, nodes, heads_a_group, group_rows)
        if work - before >= groups * chunks * caches.num_kv_heads:
            before += groups * chunks * caches.num_kv_heads
            seq += 1
            continue
        item, start = work - before, load_i32(row_start + seq * 4)
        head, first = item % caches.num_kv_heads, item // caches.num_kv_heads % groups * group_rows
        chunk = item // caches.num_kv_heads // groups
        tree = Tree(
            ancestors + seq * max_nodes * 8, block_table + seq * max_blocks * 4, prefix, first_node, slots, window,
            first_slot,
        )  # fmt: skip
        group = Group(head, first, min(group_rows, nodes * heads_a_group - first), heads_a_group)
        start_group(group, q + start * q_stride, q_stride, scale, caches.head_dim, parts)
        attend_chunk(caches, tree, group, chunk, parts)
        place = partials + start * partial_row
        write_partials(group, chunk, max_chunks, num_heads, caches.head_dim, place, parts)
        work = atomic_add(counter, 1)
    barrier(control, num_threads)
    row = atomic_add(join_counter, 1)
    while row < num_rows:
        seq = load_i32(row_seq + row * 4)
        nodes = load_i32(num_nodes + seq * 4)
        _, chunks = num_items(
            load_i32(prefix_len + seq * 4) + first_node + nodes, nodes, heads_a_group, group_rows
        )
        for head in range(num_heads):
            target = out + (row * num_heads + head) * caches.head_dim * 4
            place = partials + row * partial_row + head * (partial_row // num_heads)
            join_chunks(target, place, chunks, caches.head_dim, scratch)
        row = atomic_add(join_counter, 1)
