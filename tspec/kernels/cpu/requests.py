"""What a row's token is drawn with: the settings of its sequence, and its place in the text."""

from typing import NamedTuple

from tspec.kernels.cpu.frame import ROW_NODE, ROW_SEQ
from tspec.kernels.cpu.simd import load_f32, load_i32, load_i64
from tspec.kernels.jit import native


class Requests(NamedTuple):
    """Addresses of maps and static inputs. `space` is 0 for a row a node, 1 for a row a sequence, its last node."""

    space: int
    row_seq: int
    row_node: int
    temperature: int
    seed: int
    prefix_len: int
    depth: int
    num_nodes: int
    max_nodes: int


@native()
def requests_of(frame, space, temperature, seed, prefix_len, depth, num_nodes, max_nodes):
    """The settings of the rows of a frame."""
    return Requests(
        space, load_i64(frame + ROW_SEQ), load_i64(frame + ROW_NODE), temperature, seed, prefix_len, depth, num_nodes,
        max_nodes,
    )  # fmt: skip


@native()
def sequence_of(requests, row):
    """The sequence of a dense row."""
    return row if requests.space else load_i32(requests.row_seq + row * 4)


@native()
def draw_of(requests, row):
    """(temperature, seed, position of the token that is drawn) of a dense row."""
    seq = sequence_of(requests, row)
    if requests.space:
        node = max(load_i32(requests.num_nodes + seq * 4), 1) - 1
    else:
        node = load_i32(requests.row_node + row * 4)
    depth = load_i32(requests.depth + (seq * requests.max_nodes + node) * 4)
    position = load_i32(requests.prefix_len + seq * 4) + depth + 1
    return load_f32(requests.temperature + seq * 4), load_i64(requests.seed + seq * 8), position
