"""The token of each row from the best of each block of the vocabulary: what the head and `sample` have in common.

    write_best  device function: a block's best score and the lowest token of it
    choose      one launch: out = the lowest token of the best score of all blocks; NO_TOKEN where that is -inf

Shapes    the bests: [rows, blocks] float32 scores and int32 tokens, views of `partials`; out: [rows]
Grid      one program a row
Cost      8 bytes for each row and block
Rows      independent; a maximum has no order
Oracle    tspec/kernels/reference/sampling.py::sample, with what wrote the bests
"""

import torch
import triton
import triton.language as tl

from tspec.core import sampling
from tspec.kernels.cuda.launch import Scratch, best_floats

BLOCK = 1024
"""Bests that a program compares at once."""

NUM_WARPS = 4

NO_TOKEN = tl.constexpr(sampling.NO_TOKEN)
AFTER_ALL = tl.constexpr(2147483647)
"""A token that loses every tie."""


@triton.jit
def write_best(best_ptr, token_ptr, scores, row, inside, token):
    """Write the best of scores [N, M] and the lowest token of it. `row`, `inside`: [M]; `token`: int32 [N].

    Grid     program_id(1) is the block of num_programs(1) that these scores are
    """
    best = tl.max(scores, axis=0)
    found = tl.min(tl.where(scores == best[None, :], token[:, None], AFTER_ALL), axis=0)
    place = row * tl.num_programs(1) + tl.program_id(1)
    tl.store(best_ptr + place, best, mask=inside)
    tl.store(token_ptr + place, found, mask=inside)


@triton.jit(do_not_specialize=["blocks"])
def _choose(out_ptr, best_ptr, token_ptr, blocks, BLOCK: tl.constexpr, USE_PDL: tl.constexpr):
    if USE_PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    best = tl.full((BLOCK,), float("-inf"), tl.float32)
    token = tl.full((BLOCK,), AFTER_ALL, tl.int32)
    for start in range(0, blocks, BLOCK):
        block = start + tl.arange(0, BLOCK)
        inside = block < blocks
        value = tl.load(best_ptr + row * blocks + block, mask=inside, other=float("-inf"))
        found = tl.load(token_ptr + row * blocks + block, mask=inside, other=AFTER_ALL)
        is_better = (value > best) | ((value == best) & (found < token))
        best = tl.where(is_better, value, best)
        token = tl.where(is_better, found, token)
    top = tl.max(best, axis=0)
    chosen = tl.min(tl.where(best == top, token, AFTER_ALL), axis=0)
    tl.store(out_ptr + row, tl.where(top > float("-inf"), chosen, NO_TOKEN))


def bests(scratch: Scratch, end_bytes: int, rows: int, blocks: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores and tokens of the bests: the last pieces of the first `end_bytes` of `partials`, as views."""
    assert scratch.partials is not None, "hold_scratch lets no launch pass without partials"
    end, count = end_bytes // 4, best_floats(rows, blocks) // 2
    tokens = scratch.partials.view(torch.int32)[end - count : end]
    return scratch.partials[end - 2 * count : end - count], tokens


def choose(out, best, token, rows: int, blocks: int, launch_pdl: bool) -> None:
    """Launch; see the module."""
    options = {"launch_pdl": True} if launch_pdl else {}
    _choose[(rows,)](
        out, best, token, blocks, BLOCK=BLOCK, USE_PDL=launch_pdl,
        num_warps=NUM_WARPS, enable_fp_fusion=False, **options,
    )  # fmt: skip
