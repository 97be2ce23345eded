"""Frames: rows on the CPU are dense, and a frame says which row is which.

Padding nodes have no row, so that a ragged batch costs what its real nodes cost. A frame numbers the live rows of one
space: the nodes of a pass, or those of a level of a draft's tree, of which every level has as many. It is an int64
array, which the binder starts with addresses and sizes and `index_rows` completes at the start of each pass.

Oracle: tspec/kernels/reference/rows.py
"""

from collections.abc import Callable

import numpy as np

from tspec.kernels.cpu.simd import load_i32, load_i64, store_i32, store_i64
from tspec.kernels.jit import native

NUM_ROWS, NUM_LIVE, ROW_SEQ, ROW_NODE, ROW_PLACE, SEQ_PLACE, ROW_START, COUNTS, NUM_SEQUENCES, MAX_NODES = (
    range(0, 80, 8)
)
"""Byte offsets in a frame: live rows; the last live sequence's number plus one; addresses of the maps

    row_seq, row_node    int32 [rows]  sequence and node of a row
    row_place            int32 [rows]  seq * max_nodes + node: where arrays of [B, max_nodes] have the row
    seq_place            int32 [B]     the sequence itself: where arrays of [B, 1] have the row of a sequence
    row_start            int32 [B]     first row of a sequence

and what they are made from: the address of the nodes of each sequence, sequences of the bucket, most nodes of one.
"""

FRAME_BYTES = 80


def start_frame(
    allocate: Callable[[int], int], counts: int, num_sequences: int, max_nodes: int
) -> np.ndarray:
    """Return a frame, int64, that `index_rows` may complete. `allocate` gives memory of so many bytes.

    counts  address of the nodes of each sequence, int32 [num_sequences]
    """
    rows, sequences = num_sequences * max_nodes * 4, num_sequences * 4
    maps = [allocate(size) for size in (rows, rows, rows, sequences, sequences)]
    return np.array([0, 0, *maps, counts, num_sequences, max_nodes], np.int64)


@native()
def index_rows(frame):
    """Number the live rows. One thread runs it."""
    row_seq, row_node, row_place = (
        load_i64(frame + ROW_SEQ),
        load_i64(frame + ROW_NODE),
        load_i64(frame + ROW_PLACE),
    )
    seq_place, row_start = load_i64(frame + SEQ_PLACE), load_i64(frame + ROW_START)
    counts, max_nodes = load_i64(frame + COUNTS), load_i64(frame + MAX_NODES)
    row, live = 0, 0
    for seq in range(load_i64(frame + NUM_SEQUENCES)):
        count = load_i32(counts + seq * 4)
        store_i32(row_start + seq * 4, np.int32(row))
        store_i32(seq_place + seq * 4, np.int32(seq))
        if count > 0:
            live = seq + 1
        for node in range(count):
            store_i32(row_seq + row * 4, np.int32(seq))
            store_i32(row_node + row * 4, np.int32(node))
            store_i32(row_place + row * 4, np.int32(seq * max_nodes + node))
            row += 1
    store_i64(frame + NUM_ROWS, row)
    store_i64(frame + NUM_LIVE, live)


@native()
def num_rows(frame, space):
    """Rows that a launch works on: a row a live node (space 0), or a row a sequence up to the last live one (1)."""
    return load_i64(frame + space * 8)


@native()
def place_map(frame, space):
    """Address of the map from a row to its place among arrays of [B, max_nodes], or of [B, 1]."""
    return load_i64(frame + SEQ_PLACE) if space else load_i64(frame + ROW_PLACE)
