"""Acceptance by matching: walk each tree from its root while the target's own token is a child.

Oracle    tspec/kernels/reference/accept.py
"""

import numpy as np

from tspec.kernels.cpu.simd import load_i32, load_i64, store_i32
from tspec.kernels.cpu.sync import atomic_add
from tspec.kernels.jit import native

NOTHING = np.int32(-1)
"""Fills `out_tokens` and `path` past their ends."""


@native()
def accept_match(
    counter, num_sequences, out_tokens, num_out, path, node_tokens, tokens, ancestors, num_nodes, max_nodes
):
    """Write the verdict of each sequence.

    out_tokens int32 [B, T]: the accepted candidates, then the bonus token; num_out int32 [B]: how many;
    path int32 [B, T]: accepted nodes. node_tokens int32 [B, T]: the target's token after each node.
    """
    seq = atomic_add(counter, 1)
    while seq < num_sequences:
        base = seq * max_nodes
        node, taken = 0, 0
        child = matching_child(node, base, node_tokens, tokens, ancestors, num_nodes + seq * 4)
        while child > 0:
            store_i32(path + (base + taken) * 4, np.int32(child))
            taken += 1
            node = child
            child = matching_child(node, base, node_tokens, tokens, ancestors, num_nodes + seq * 4)
        bonus = load_i32(node_tokens + (base + node) * 4)
        write_verdict(out_tokens, num_out, path, tokens, seq, max_nodes, taken, bonus)
        seq = atomic_add(counter, 1)


@native()
def write_verdict(out_tokens, num_out, path, tokens, seq, max_nodes, taken, bonus):
    """Finish what is known by the first `taken` nodes of `path` and the bonus token."""
    base = seq * max_nodes
    for at in range(taken):
        node = load_i32(path + (base + at) * 4)
        store_i32(out_tokens + (base + at) * 4, load_i32(tokens + (base + node) * 4))
    store_i32(out_tokens + (base + taken) * 4, bonus)
    store_i32(num_out + seq * 4, np.int32(taken + 1))
    for rest in range(taken, max_nodes):
        store_i32(path + (base + rest) * 4, NOTHING)
        if rest > taken:
            store_i32(out_tokens + (base + rest) * 4, NOTHING)


@native()
def matching_child(node, base, node_tokens, tokens, ancestors, num_nodes):
    """The child of `node` that holds the target's token after `node`; 0 if there is none."""
    wanted = load_i32(node_tokens + (base + node) * 4)
    for other in range(node + 1, load_i32(num_nodes)):
        if is_child(ancestors + base * 8, node, other) and load_i32(tokens + (base + other) * 4) == wanted:
            return other
    return 0


@native()
def is_child(ancestors, node, other):
    """Whether `other` is a child of `node`, which comes before it: its ancestors are its parent's and itself."""
    return load_i64(ancestors + other * 8) == load_i64(ancestors + node * 8) | (np.int64(1) << other)
