"""Acceptance by matching: walk each tree from its root while the target's own token is a child.

    out_tokens  the accepted candidates, then the bonus token, then -1
    num_out     accepted candidates + 1
    path        the accepted nodes, then -1

Shapes    node_tokens, tokens, ancestors, depth, out_tokens, path: [B, T]; num_nodes, num_out: [B]; T <= 64
Dtypes    ancestors int64, all others int32; bit j of ancestors: node j is an ancestor of the node, or itself
Layout    all contiguous
Grid      one program a sequence, one warp: a tree is two nodes a lane, a step of the walk is three reductions
Cost      reads 20 bytes a node, writes 8; no product, no memory beyond its operands
Rows      independent: whole numbers only
Errors    ContractError from the launcher for any line above
Oracle    tspec/kernels/reference/accept.py
"""

import torch
import triton
import triton.language as tl

from tspec.core.errors import ContractError
from tspec.core.tree import MAX_NODES
from tspec.kernels.cuda.launch import check_tensors

NO_NODE = tl.constexpr(-1)
"""Fills out_tokens and path behind their last entry."""


@triton.jit
def _accept_match(
    out_tokens_ptr, num_out_ptr, path_ptr, node_tokens_ptr, tokens_ptr, ancestors_ptr, num_nodes_ptr,
    T: tl.constexpr, NODES: tl.constexpr, USE_PDL: tl.constexpr,
):  # fmt: skip
    if USE_PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    sequence = tl.program_id(0).to(tl.int64)
    node = tl.arange(0, NODES)
    place = sequence * T + node
    inside = node < T
    wanted = tl.load(node_tokens_ptr + place, mask=inside, other=NO_NODE)
    token = tl.load(tokens_ptr + place, mask=inside, other=NO_NODE)
    line = tl.load(ancestors_ptr + place, mask=inside, other=0)
    live = node < tl.load(num_nodes_ptr + sequence)
    # A child's ancestors are its parent's and itself; so this is the line of each node's parent.
    above = line ^ (tl.full((NODES,), 1, tl.int64) << node.to(tl.int64))

    out_tokens = tl.full((NODES,), NO_NODE, tl.int32)
    path = tl.full((NODES,), NO_NODE, tl.int32)
    at, accepted = 0, 0
    while at < NODES:
        here = node == at
        bonus = tl.sum(tl.where(here, wanted, 0), axis=0)
        parent = tl.sum(tl.where(here, line, 0), axis=0)
        out_tokens = tl.where(node == accepted, bonus, out_tokens)
        is_next = live & (node > at) & (above == parent) & (token == bonus)
        at = tl.min(tl.where(is_next, node, NODES), axis=0)
        if at < NODES:
            path = tl.where(node == accepted, at, path)
        accepted += 1
    tl.store(out_tokens_ptr + place, out_tokens, mask=inside)
    tl.store(path_ptr + place, path, mask=inside)
    tl.store(num_out_ptr + sequence, accepted)


def accept_match(
    out_tokens, num_out, path, node_tokens, tokens, ancestors, depth, num_nodes, *, launch_pdl=False
) -> None:
    """Write the verdict of each sequence. `depth` is the op's, and follows from `ancestors`. See the module."""
    batch, nodes = tokens.shape
    if nodes > MAX_NODES:
        raise ContractError(
            "nodes of accept_match", got=nodes, need=f"at most {MAX_NODES}", fix="Take a smaller bucket."
        )
    tree, row = (batch, nodes), (batch,)
    shapes = {
        "out_tokens": (out_tokens, tree, torch.int32),
        "num_out": (num_out, row, torch.int32),
        "path": (path, tree, torch.int32),
        "node_tokens": (node_tokens, tree, torch.int32),
        "tokens": (tokens, tree, torch.int32),
        "ancestors": (ancestors, tree, torch.int64),
        "depth": (depth, tree, torch.int32),
        "num_nodes": (num_nodes, row, torch.int32),
    }
    check_tensors("accept_match", shapes)
    if batch == 0:
        return
    options = {"launch_pdl": True} if launch_pdl else {}
    _accept_match[(batch,)](
        out_tokens, num_out, path, node_tokens, tokens, ancestors, num_nodes,
        T=nodes, NODES=triton.next_power_of_2(nodes), USE_PDL=launch_pdl,
        num_warps=1, enable_fp_fusion=False, **options,
    )  # fmt: skip
