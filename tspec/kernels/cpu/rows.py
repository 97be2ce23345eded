"""Rows on the CPU are dense: padding nodes have none, so a ragged batch costs what its real nodes cost.

    index_rows  numbers the live nodes of the bucket: row -> (sequence, node), sequence -> first row
    embed       hidden = weight[token], from a plain table or from a packed head
    last_row    keeps the row of each sequence's last node

Sequences with no nodes come last in a bucket and have no rows. Oracle: tspec/kernels/reference/rows.py, embed.py
"""

import numpy as np

from tspec.kernels.cpu import simd
from tspec.kernels.cpu.linear import PANEL
from tspec.kernels.cpu.simd import (
    BF16,
    F16,
    F32,
    load_f32,
    load_i16,
    load_i32,
    store_f32,
    store_i32,
    store_i64,
)
from tspec.kernels.cpu.sync import atomic_add
from tspec.kernels.jit import native


@native()
def index_rows(
    frame, num_nodes, num_sequences, max_nodes, row_seq, row_node, row_place, seq_place, row_start
):
    """Fill the maps; frame int64 [2] = (live rows, live sequences). One thread runs it.

    row_place int32 [rows] is seq * max_nodes + node; seq_place int32 [B] is the sequence itself.
    """
    row, live = 0, 0
    for seq in range(num_sequences):
        count = load_i32(num_nodes + seq * 4)
        store_i32(row_start + seq * 4, np.int32(row))
        store_i32(seq_place + seq * 4, np.int32(seq))
        if count > 0:
            live = seq + 1
        for node in range(count):
            store_i32(row_seq + row * 4, np.int32(seq))
            store_i32(row_node + row * 4, np.int32(node))
            store_i32(row_place + row * 4, np.int32(seq * max_nodes + node))
            row += 1
    store_i64(frame, row)
    store_i64(frame + 8, live)


@native()
def load_number(address, storage):
    """One stored number as float32."""
    if storage == BF16:
        return simd.bf16_value(load_i16(address))
    if storage == F16:
        return simd.f16_value(load_i16(address))
    return load_f32(address)


@native()
def embed(counter, num_rows, row_place, storage, is_packed, out, tokens, weight, cols):
    """out float32 [rows, cols] = weight[tokens]; weight plain [V, cols], or packed in panels."""
    size = 4 if storage == F32 else 2
    row = atomic_add(counter, 1)
    while row < num_rows:
        token = np.int64(load_i32(tokens + load_i32(row_place + row * 4) * 4))
        panel, lane = token // PANEL, token % PANEL
        for col in range(cols):
            if is_packed == 0:
                offset = token * cols + col
            elif storage == BF16:
                offset = panel * cols * PANEL + ((col // 2) * PANEL + lane) * 2 + col % 2
            else:
                offset = (panel * cols + col) * PANEL + lane
            store_f32(out + (row * cols + col) * 4, load_number(weight + offset * size, storage))
        row = atomic_add(counter, 1)


@native()
def last_row(counter, num_sequences, row_start, num_nodes, out, x, cols):
    """out[seq] = x[the dense row of the last node of seq]."""
    seq = atomic_add(counter, 1)
    while seq < num_sequences:
        row = load_i32(row_start + seq * 4) + load_i32(num_nodes + seq * 4) - 1
        for col in range(cols):
            store_f32(out + (seq * cols + col) * 4, load_f32(x + (row * cols + col) * 4))
        seq = atomic_add(counter, 1)
