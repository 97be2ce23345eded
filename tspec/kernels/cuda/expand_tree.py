"""Grow a draft's tree by a level: score the candidates below the current one, and make the best of them the next.

    scores          row_scores + logprobs; -inf for rows that are no nodes of the level, for NO_TOKEN and for NaN
    next_from       the level_nodes best of them, of equal ones the lowest index row * N + place first
    next_tokens, next_scores, next_ancestors, next_depth
                    of each: its token, its score, the bits of the row it hangs on and its own, first_node + node; depth

Where candidates run out, and in padding: token 0, from 0, score -inf, the own bit alone. A bit past 63 is none: such a
level is no more than a list of candidates.

Shapes    tokens, logprobs, scores: [B, R, N]; row_scores, ancestors: [B, R] or None; level_nodes: [B]; next_…: [B, W];
          R * N at most 4096
Dtypes    scores, logprobs and row_scores fp32; ancestors int64; others int32
Layout    all contiguous
Grid      one program a sequence: all of its candidates lie in registers, and a node is two reductions
Cost      reads 8 bytes a candidate, writes 4
Rows      independent; nothing is summed but a score and a log-probability, as the reference does
Errors    ContractError from the launcher for any line above
Oracle    tspec/kernels/reference/draft.py::expand_tree
"""

from typing import Any

import torch
import triton
import triton.language as tl

from tspec.core.errors import ContractError
from tspec.kernels.cuda.choose import NO_TOKEN
from tspec.kernels.cuda.launch import check_tensors

MAX_CANDIDATES = 4096
"""Below a level of one sequence."""

_CANDIDATES_A_WARP = 512

LAST_BIT = tl.constexpr(63)


@triton.jit
def _scores(
    logprobs_ptr, row_scores_ptr, tokens_ptr, first, row, place, inside, live_rows
):  # fmt: skip
    """Scores of the candidates at `place`; -inf where there is none."""
    token = tl.load(tokens_ptr + first + place, mask=inside, other=NO_TOKEN)
    scores = tl.load(logprobs_ptr + first + place, mask=inside, other=float("-inf"))
    if row_scores_ptr is not None:
        scores += tl.load(row_scores_ptr + row, mask=inside, other=float("-inf"))
    return tl.where(live_rows & (token != NO_TOKEN) & (scores == scores), scores, float("-inf"))


@triton.jit(do_not_specialize=["first_node", "depth"])
def _expand_tree(
    scores_ptr, next_tokens_ptr, next_from_ptr, next_scores_ptr, next_ancestors_ptr, next_depth_ptr,
    tokens_ptr, logprobs_ptr, row_scores_ptr, ancestors_ptr, level_nodes_ptr, first_node, depth,
    ROWS: tl.constexpr, MOST: tl.constexpr, WIDTH: tl.constexpr,
    CANDIDATES: tl.constexpr, NODES: tl.constexpr, USE_PDL: tl.constexpr,
):  # fmt: skip
    if USE_PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    sequence = tl.program_id(0).to(tl.int64)
    num_nodes = tl.load(level_nodes_ptr + sequence)
    first, first_row = sequence * (ROWS * MOST), sequence * ROWS
    place, node = tl.arange(0, CANDIDATES), tl.arange(0, NODES)
    inside, row = place < ROWS * MOST, place // MOST
    scores = _scores(
        logprobs_ptr, row_scores_ptr, tokens_ptr, first, first_row + row, place, inside, row < num_nodes
    )
    tl.store(scores_ptr + first + place, scores, mask=inside)

    next_from = tl.zeros((NODES,), tl.int32)
    next_scores = tl.full((NODES,), float("-inf"), tl.float32)
    left = scores
    for number in range(tl.minimum(num_nodes, WIDTH)):
        best = tl.max(left, axis=0)
        found = tl.min(tl.where(left == best, place, CANDIDATES), axis=0)
        is_here = node == tl.where(best > float("-inf"), number, -1)
        next_from = tl.where(is_here, found, next_from)
        next_scores = tl.where(is_here, best, next_scores)
        left = tl.where(place == found, float("-inf"), left)

    is_node = next_scores > float("-inf")
    bit = first_node + node
    line = tl.full((NODES,), 1, tl.int64) << tl.minimum(bit, LAST_BIT).to(tl.int64)
    line = tl.where(bit <= LAST_BIT, line, 0)
    if ancestors_ptr is not None:
        line = line | tl.load(ancestors_ptr + first_row + next_from // MOST, mask=is_node, other=0)
    next_tokens = tl.load(tokens_ptr + first + next_from, mask=is_node, other=0)
    out, in_level = sequence * WIDTH + node, node < WIDTH
    tl.store(next_tokens_ptr + out, next_tokens, mask=in_level)
    tl.store(next_from_ptr + out, next_from, mask=in_level)
    tl.store(next_scores_ptr + out, next_scores, mask=in_level)
    tl.store(next_ancestors_ptr + out, line, mask=in_level)
    tl.store(next_depth_ptr + out, tl.zeros((NODES,), tl.int32) + depth, mask=in_level)


def expand_tree(
    scores, next_tokens, next_from, next_scores, next_ancestors, next_depth,
    tokens, logprobs, row_scores, ancestors, level_nodes,
    *, first_node: int, depth: int, width: int, launch_pdl: bool = False,
) -> None:  # fmt: skip
    """Launch; see the module. Errors: ContractError."""
    batch, rows, most = tokens.shape
    if rows * most > MAX_CANDIDATES:
        raise ContractError(
            "candidates of expand_tree", got=rows * most, need=f"at most {MAX_CANDIDATES}",
            fix="Take a narrower tree.",
        )  # fmt: skip
    found, level = (batch, rows, most), (batch, width)
    shapes = {
        "scores": (scores, found, torch.float32),
        "next_tokens": (next_tokens, level, torch.int32),
        "next_from": (next_from, level, torch.int32),
        "next_scores": (next_scores, level, torch.float32),
        "next_ancestors": (next_ancestors, level, torch.int64),
        "next_depth": (next_depth, level, torch.int32),
        "tokens": (tokens, found, torch.int32),
        "logprobs": (logprobs, found, torch.float32),
        "row_scores": (row_scores, (batch, rows), torch.float32),
        "ancestors": (ancestors, (batch, rows), torch.int64),
        "level_nodes": (level_nodes, (batch,), torch.int32),
    }
    check_tensors("expand_tree", shapes)
    if batch == 0:
        return
    _expand_tree[(batch,)](
        scores, next_tokens, next_from, next_scores, next_ancestors, next_depth,
        tokens, logprobs, row_scores, ancestors, level_nodes, first_node, depth,
        **constexprs(rows, most, width, launch_pdl), **options(rows, most, launch_pdl),
    )  # fmt: skip


def constexprs(rows: int, most: int, width: int, launch_pdl: bool) -> dict[str, Any]:
    """Compile-time arguments of the kernel."""
    sizes = {"ROWS": rows, "MOST": most, "WIDTH": width}
    padded = {"CANDIDATES": triton.next_power_of_2(rows * most), "NODES": triton.next_power_of_2(width)}
    return {**sizes, **padded, "USE_PDL": launch_pdl}


def options(rows: int, most: int, launch_pdl: bool) -> dict[str, Any]:
    """Options of the compiler and the launcher: one warp for the candidates of most trees."""
    num_warps = max(1, triton.next_power_of_2(rows * most) // _CANDIDATES_A_WARP)
    found: dict[str, Any] = {"num_warps": num_warps, "enable_fp_fusion": False}
    return found | ({"launch_pdl": True} if launch_pdl else {})
