"""KV blocks on the CPU: where a key and a value lie, writing them, moving accepted ones.

A block holds BLOCK_TOKENS = 64 positions of one layer for each KV head. Keys lie transposed, `[D][64]`, so that the
scores of a block are one register-block product (for BF16 in pairs, `[D / 2][64][2]`); values lie `[64][Dp]`, where
Dp is head_dim padded to whole vectors of 16.

    rope_kv_write  splits qkv, normalises heads (optional), rotates q and k, writes k and v at slot prefix_len + node
    kv_commit      moves the accepted path's keys and values to consecutive slots

Oracle    tspec/kernels/reference/kv_cache.py, rope.py
"""

from tspec.core.shapes import BLOCK_TOKENS
from tspec.kernels.cpu import simd
from tspec.kernels.cpu.norm import normalise
from tspec.kernels.cpu.simd import (
    BF16,
    F16,
    F32,
    LANES,
    load_f32,
    load_i16,
    load_i32,
    store_f32,
    store_i16,
)
from tspec.kernels.cpu.sync import atomic_add
from tspec.kernels.jit import native


@native()
def item_bytes(storage):
    """Bytes of one stored number."""
    return 4 if storage == F32 else 2


@native()
def padded_dim(head_dim):
    """Lanes of a value row: head_dim in whole vectors."""
    return (head_dim + LANES - 1) // LANES * LANES


@native()
def key_block(cache, storage, block, head, num_kv_heads, head_dim):
    """Address of one head's keys of one block."""
    return cache + (block * num_kv_heads + head) * BLOCK_TOKENS * head_dim * item_bytes(storage)


@native()
def value_block(cache, storage, block, head, num_kv_heads, head_dim):
    """Address of one head's values of one block."""
    return cache + (block * num_kv_heads + head) * BLOCK_TOKENS * padded_dim(head_dim) * item_bytes(storage)


@native()
def key_offset(storage, slot, dim):
    """Byte offset of one key element in its block; `slot` counts within the block."""
    if storage == BF16:
        return ((dim // 2) * BLOCK_TOKENS * 2 + slot * 2 + dim % 2) * 2
    return (dim * BLOCK_TOKENS + slot) * item_bytes(storage)


@native()
def store_number(address, storage, value):
    """Store a float32 rounded to the storage dtype, ties to even."""
    if storage == BF16:
        store_i16(address, simd.bf16_bits(value))
    elif storage == F16:
        store_i16(address, simd.f16_bits(value))
    else:
        store_f32(address, value)


@native()
def rope_kv_write(
    counter, num_rows, row_seq, row_node, storage,
    k_cache, v_cache, qkv, cos, sin, q_norm, k_norm, depth, block_table, prefix_len,
    max_nodes, head_dim, num_heads, num_kv_heads, eps, max_blocks, first_node,
):  # fmt: skip
    """See the module. Queries are rotated where they lie in qkv.

    Rows are dense: row `row` is node row_node[row] of sequence row_seq[row] in the bucket; in a level of a draft's
    tree, node first_node + row_node[row] of the tree.
    """
    width = (num_heads + 2 * num_kv_heads) * head_dim
    row = atomic_add(counter, 1)
    while row < num_rows:
        seq, node = load_i32(row_seq + row * 4), load_i32(row_node + row * 4)
        prefix = load_i32(prefix_len + seq * 4)
        position = prefix + load_i32(depth + (seq * max_nodes + node) * 4)
        slot = prefix + first_node + node
        block = load_i32(block_table + (seq * max_blocks + slot // BLOCK_TOKENS) * 4)
        angles = position * (head_dim // 2) * 4
        source = qkv + row * width * 4
        for head in range(num_heads + num_kv_heads):
            vector = source + head * head_dim * 4
            norm = q_norm if head < num_heads else k_norm
            if norm != 0:
                normalise(vector, vector, norm, head_dim, eps)
            _rotate(vector, vector, cos + angles, sin + angles, head_dim)
            if head >= num_heads:
                kv_head = head - num_heads
                keys = key_block(k_cache, storage, block, kv_head, num_kv_heads, head_dim)
                _write_key(keys, storage, slot % BLOCK_TOKENS, vector, head_dim)
                values = value_block(v_cache, storage, block, kv_head, num_kv_heads, head_dim)
                start = values + (slot % BLOCK_TOKENS) * padded_dim(head_dim) * item_bytes(storage)
                _write_value(start, storage, vector + num_kv_heads * head_dim * 4, head_dim)
        row = atomic_add(counter, 1)


@native()
def _rotate(out, x, cos, sin, head_dim):
    """Rotate the halves of one head: (a, b) -> (a cos - b sin, b cos + a sin); out may be x."""
    half = head_dim // 2
    for dim in range(half):
        c, s = load_f32(cos + dim * 4), load_f32(sin + dim * 4)
        low, high = load_f32(x + dim * 4), load_f32(x + (half + dim) * 4)
        store_f32(out + dim * 4, low * c - high * s)
        store_f32(out + (half + dim) * 4, high * c + low * s)


@native()
def _write_key(keys, storage, slot, vector, head_dim):
    for dim in range(head_dim):
        store_number(keys + key_offset(storage, slot, dim), storage, load_f32(vector + dim * 4))


@native()
def _write_value(start, storage, vector, head_dim):
    size = item_bytes(storage)
    for dim in range(head_dim):
        store_number(start + dim * size, storage, load_f32(vector + dim * 4))


@native()
def kv_commit(
    counter, num_sequences, num_layers, storage,
    k_caches, v_caches, path, num_out, block_table, prefix_len, num_nodes, head_dim, num_kv_heads, max_blocks,
):  # fmt: skip
    """Move slot prefix_len + path[d] to slot prefix_len + d + 1 for each accepted d, in all layers.

    k_caches, v_caches: int64 [num_layers] addresses. Claims one (sequence, layer, head) at a time; moves within
    one go to ever lower slots, in ascending order, so that none overwrites what is still to be read.
    """
    work = atomic_add(counter, 1)
    while work < num_sequences * num_layers * num_kv_heads:
        head = work % num_kv_heads
        layer = work // num_kv_heads % num_layers
        seq = work // num_kv_heads // num_layers
        keys, values = simd.load_i64(k_caches + layer * 8), simd.load_i64(v_caches + layer * 8)
        prefix = load_i32(prefix_len + seq * 4)
        for accepted in range(load_i32(num_out + seq * 4) - 1):
            source = prefix + load_i32(path + (seq * num_nodes + accepted) * 4)
            target = prefix + accepted + 1
            if source != target:
                from_block = load_i32(block_table + (seq * max_blocks + source // BLOCK_TOKENS) * 4)
                to_block = load_i32(block_table + (seq * max_blocks + target // BLOCK_TOKENS) * 4)
                _move_key(
                    key_block(keys, storage, to_block, head, num_kv_heads, head_dim), target % BLOCK_TOKENS,
                    key_block(keys, storage, from_block, head, num_kv_heads, head_dim), source % BLOCK_TOKENS,
                    storage, head_dim,
                )  # fmt: skip
                _move_value(
                    value_block(values, storage, to_block, head, num_kv_heads, head_dim), target % BLOCK_TOKENS,
                    value_block(values, storage, from_block, head, num_kv_heads, head_dim), source % BLOCK_TOKENS,
                    storage, head_dim,
                )  # fmt: skip
        work = atomic_add(counter, 1)


@native()
def _move_key(to_keys, to_slot, from_keys, from_slot, storage, head_dim):
    for dim in range(head_dim):
        target = to_keys + key_offset(storage, to_slot, dim)
        source = from_keys + key_offset(storage, from_slot, dim)
        if storage == F32:
            store_f32(target, load_f32(source))
        else:
            store_i16(target, load_i16(source))


@native()
def _move_value(to_values, to_slot, from_values, from_slot, storage, head_dim):
    row_bytes = padded_dim(head_dim) * item_bytes(storage)
    for at in range(0, row_bytes, 2):
        store_i16(to_values + to_slot * row_bytes + at, load_i16(from_values + from_slot * row_bytes + at))
