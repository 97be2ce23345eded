"""Choosing a token from each row of logits in memory.

    sample    out = the kept token with the largest logits / temperature + noise; the largest logit's where that is 0

The lowest token wins a tie; NaN counts as -inf; rows of nothing else and padding give NO_TOKEN.

Shapes    logits: [B, R, V]; temperature, seed, prefix_len, num_nodes: [B]; depth: [B, T]; out: [B, R];
          threshold, first_tie: [B, R], or both None: then all are kept. R is T, or 1: the row is the last node's
Dtypes    logits, temperature and threshold fp32, seed int64, others int32
Layout    all contiguous; offsets of logits are int64
Grid      (rows, blocks of V), whose programs write the best of their block to `partials`; then one program a row
Cost      two launches; reads live rows once; 8 bytes for each row and block of V; of sampled rows one random
          counter for four logits
Rows      independent; a maximum has no order. Scores and noise come from the head's own functions: scores.py
Errors    ContractError from the launcher for any line above, and for `partials` smaller than scratch_bytes
Oracle    tspec/kernels/reference/sampling.py::sample
"""

import torch
import triton
import triton.language as tl

from tspec.kernels.cuda.choose import bests, choose, write_best
from tspec.kernels.cuda.launch import ScratchBytes, best_floats, check_tensors, hold_scratch
from tspec.kernels.cuda.noise import TARGET
from tspec.kernels.cuda.scores import Request, clean, find_nodes, is_kept, next_position, noisy, scaled

BLOCK = 1024
"""Tokens of one program."""

NUM_WARPS = 4


@triton.jit(do_not_specialize=["rows_each", "nodes"])
def _sample(
    best_ptr, token_ptr, logits_ptr,
    temperature_ptr, seed_ptr, prefix_len_ptr, depth_ptr, num_nodes_ptr, rows_each, nodes,
    threshold_ptr, first_tie_ptr, vocab,
    BLOCK: tl.constexpr, USE_PDL: tl.constexpr,
):  # fmt: skip
    if USE_PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    row = tl.program_id(0).to(tl.int64) + tl.arange(0, 1)
    sequence, node, live = find_nodes(num_nodes_ptr, row, row >= 0, rows_each)
    temperature = tl.load(temperature_ptr + sequence, mask=live, other=0.0)
    first_token = tl.program_id(1) * BLOCK
    token = first_token + tl.arange(0, BLOCK)
    inside = live[None, :] & (token < vocab)[:, None]
    place = row[None, :] * vocab + token[:, None]
    scores = clean(tl.load(logits_ptr + place, mask=inside, other=float("-inf")))
    if tl.max(temperature, axis=0) > 0:
        scores = scaled(scores, temperature)
        if threshold_ptr is not None:
            threshold = tl.load(threshold_ptr + row)
            first_tie = tl.load(first_tie_ptr + row)
            kept = is_kept(scores, token[:, None], threshold[None, :], first_tie[None, :])
            scores = tl.where(kept, scores, float("-inf"))
        position = next_position(sequence, node, live, prefix_len_ptr, depth_ptr, nodes)
        scores = noisy(scores, temperature, sequence, live, position, TARGET, first_token, seed_ptr)
    write_best(best_ptr, token_ptr, scores, row, row >= 0, token)


def scratch_bytes(rows: int, vocab: int) -> ScratchBytes:
    """What `sample` needs for `rows` rows."""
    return ScratchBytes(4 * best_floats(rows, triton.cdiv(vocab, BLOCK)), 0)


def sample(
    out, logits, temperature, seed, prefix_len, depth, num_nodes, threshold=None, first_tie=None,
    *, scratch, launch_pdl=False,
) -> None:  # fmt: skip
    """Launch; see the module."""
    (batch, rows_each, vocab), nodes = logits.shape, depth.shape[-1]
    request = Request(temperature, seed, prefix_len, depth, num_nodes, rows_each, nodes)
    shapes = {
        "out": (out, (batch, rows_each), torch.int32),
        "logits": (logits, (batch, rows_each, vocab), torch.float32),
        "threshold": (threshold, (batch, rows_each), torch.float32),
        "first_tie": (first_tie, (batch, rows_each), torch.int32),
    }
    check_tensors("sample", shapes | request.shapes(batch))
    if logits.numel() == 0:
        return
    rows, blocks = batch * rows_each, triton.cdiv(vocab, BLOCK)
    need = scratch_bytes(rows, vocab)
    hold_scratch("sample", scratch, need)
    best, token = bests(scratch, need.partials, rows, blocks)
    options = {"launch_pdl": True} if launch_pdl else {}
    _sample[(rows, blocks)](
        best, token, logits, *request, threshold, first_tie, vocab,
        BLOCK=BLOCK, USE_PDL=launch_pdl, num_warps=NUM_WARPS, enable_fp_fusion=False, **options,
    )  # fmt: skip
    choose(out, best, token, rows, blocks, launch_pdl)
