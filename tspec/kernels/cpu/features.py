"""Features of the target for a proposer that reads them: hidden rows of committed positions, kept in blocks like KV.

    keep_features  stores the rows of committed nodes, those of the accepted path where there is a verdict
    read_features  gives each node the row of the position before its own

Shapes    features float32 [num_blocks, 64, F], of which a launch has `cols` columns from `column` on; rows dense
Rows      one thread claims a row
Oracle    tspec/kernels/reference/draft.py
"""

from typing import NamedTuple

from tspec.core.shapes import BLOCK_TOKENS
from tspec.kernels.cpu.frame import ROW_NODE, ROW_PLACE, ROW_SEQ, ROW_START
from tspec.kernels.cpu.rows import copy_row
from tspec.kernels.cpu.simd import load_i32, load_i64, store_i32
from tspec.kernels.cpu.sync import atomic_add
from tspec.kernels.jit import native


class Features(NamedTuple):
    """Addresses of the features, of the blocks and of the committed tokens of each sequence; which columns."""

    memory: int
    block_table: int
    prefix_len: int
    max_blocks: int
    total: int
    column: int
    cols: int


@native()
def feature_row(features, seq, position):
    """Address of the columns of one position of a sequence."""
    block = load_i32(features.block_table + (seq * features.max_blocks + position // BLOCK_TOKENS) * 4)
    place = block * BLOCK_TOKENS + position % BLOCK_TOKENS
    return features.memory + (place * features.total + features.column) * 4


@native()
def keep_features(counter, num_rows, frame, x, features, path, num_out, max_nodes):
    """Position prefix_len + j keeps the row of the j-th node of the path, the root first; all nodes where path is 0."""
    row_seq, row_node = load_i64(frame + ROW_SEQ), load_i64(frame + ROW_NODE)
    row_start = load_i64(frame + ROW_START)
    row = atomic_add(counter, 1)
    while row < num_rows:
        seq, entry = load_i32(row_seq + row * 4), load_i32(row_node + row * 4)
        source = row
        if path != 0 and entry > 0:
            source = load_i32(row_start + seq * 4) + load_i32(path + (seq * max_nodes + entry - 1) * 4)
        if path == 0 or entry < load_i32(num_out + seq * 4):
            position = load_i32(features.prefix_len + seq * 4) + entry
            copy_row(feature_row(features, seq, position), x + source * features.cols * 4, features.cols)
        row = atomic_add(counter, 1)


@native()
def read_features(counter, num_rows, frame, out, features, depth):
    """out[row] = the columns of position prefix_len + depth - 1; zeros at position 0, which has none before it."""
    row_seq, row_place = load_i64(frame + ROW_SEQ), load_i64(frame + ROW_PLACE)
    row = atomic_add(counter, 1)
    while row < num_rows:
        seq, target = load_i32(row_seq + row * 4), out + row * features.cols * 4
        position = load_i32(features.prefix_len + seq * 4) + load_i32(
            depth + load_i32(row_place + row * 4) * 4
        )
        if position > 0:
            copy_row(target, feature_row(features, seq, position - 1), features.cols)
        else:
            for at in range(0, features.cols * 4, 4):
                store_i32(target + at, 0)
        row = atomic_add(counter, 1)
