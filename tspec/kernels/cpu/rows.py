"""Kernels that move rows, or change each by itself.

    embed        hidden = weight[token], from a plain table or from a packed head
    last_row     keeps the row of each sequence's last node
    parent_rows  gives each node of a draft's level the row that it hangs on
    concat       the numbers of one row, then those of another
    rms_norm     RMSNorm where no product follows that could do it
    silu_add     x * sigmoid(x) + residual

Rows      dense (frame.py) and independent; one thread claims a row
Oracle    tspec/kernels/reference/embed.py, rows.py, draft.py, norm.py
"""

import numpy as np

from tspec.kernels.cpu import simd
from tspec.kernels.cpu.linear import PANEL
from tspec.kernels.cpu.norm import normalise
from tspec.kernels.cpu.simd import (
    BF16,
    F16,
    F32,
    LANES,
    first_lane,
    load,
    load_f32,
    load_i16,
    load_i32,
    splat,
    store,
    store_f32,
)
from tspec.kernels.cpu.sync import atomic_add
from tspec.kernels.jit import native

ONE = np.float32(1.0)


@native()
def copy_row(out, x, cols):
    """out float32 [cols] = x."""
    whole = cols - cols % LANES
    for col in range(0, whole, LANES):
        store(out + col * 4, load(x + col * 4))
    for col in range(whole, cols):
        store_f32(out + col * 4, load_f32(x + col * 4))


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
    """out[seq] = x[the dense row of the last node of seq]; of a sequence without nodes nothing is written."""
    seq = atomic_add(counter, 1)
    while seq < num_sequences:
        count = load_i32(num_nodes + seq * 4)
        if count > 0:
            row = load_i32(row_start + seq * 4) + count - 1
            copy_row(out + seq * cols * 4, x + row * cols * 4, cols)
        seq = atomic_add(counter, 1)


@native()
def parent_rows(counter, num_rows, row_seq, row_place, source_start, out, x, cols, next_from, most):
    """out[row] = x[the row that candidate next_from[place] hangs on]; `most` candidates hang on each.

    next_from    int32 [B, W], counted over the candidates of a sequence
    source_start int32 [B], the first row of x of each sequence; 0 where x has a row a sequence
    """
    row = atomic_add(counter, 1)
    while row < num_rows:
        parent = load_i32(next_from + load_i32(row_place + row * 4) * 4) // most
        seq = load_i32(row_seq + row * 4)
        source = np.int64(seq) if source_start == 0 else load_i32(source_start + seq * 4) + parent
        copy_row(out + row * cols * 4, x + source * cols * 4, cols)
        row = atomic_add(counter, 1)


@native()
def concat(counter, num_rows, out, a, cols, b, more_cols):
    """out float32 [rows, cols + more_cols] = a [rows, cols], then b [rows, more_cols], in each row."""
    row = atomic_add(counter, 1)
    while row < num_rows:
        target = out + row * (cols + more_cols) * 4
        copy_row(target, a + row * cols * 4, cols)
        copy_row(target + cols * 4, b + row * more_cols * 4, more_cols)
        row = atomic_add(counter, 1)


@native()
def rms_norm(counter, num_rows, out, x, weight, cols, eps):
    """out float32 [rows, cols] = the normalised rows of x; `weight` float32 [cols]."""
    row = atomic_add(counter, 1)
    while row < num_rows:
        normalise(out + row * cols * 4, x + row * cols * 4, weight, cols, eps)
        row = atomic_add(counter, 1)


@native()
def silu_add(counter, num_rows, out, x, residual, cols):
    """out float32 [rows, cols] = x / (1 + exp(-x)) + residual."""
    whole = cols - cols % LANES
    row = atomic_add(counter, 1)
    while row < num_rows:
        start, end = row * cols * 4, (row + 1) * cols * 4
        for at in range(start, start + whole * 4, LANES * 4):
            store(out + at, simd.add(_silu(load(x + at)), load(residual + at)))
        for at in range(start + whole * 4, end, 4):
            store_f32(out + at, first_lane(_silu(splat(load_f32(x + at)))) + load_f32(residual + at))
        row = atomic_add(counter, 1)


@native()
def _silu(x):
    """x / (1 + exp(-x)) of lanes."""
    return simd.div(x, simd.add(splat(ONE), simd.exp(simd.mul(x, splat(-ONE)))))
