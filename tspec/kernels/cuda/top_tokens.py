"""The likeliest tokens of each row of a draft's logits.

    tokens, logprobs  of the `most` largest logits, the largest first, of equal ones the lowest token first: the token
                      (token_ids[token], where a draft counts its tokens otherwise than the target), and its logit less
                      the log of the sum of exp(logit)

NaN counts as minus infinity. Padding, and places for which there is no token above minus infinity, have NO_TOKEN and
minus infinity.

Shapes    logits: [B, R, V]; num_nodes: [B]; token_ids: [V] or None; tokens, logprobs: [B, R, most]. R is T, W, or 1:
          the row is live where num_nodes is above 0
Dtypes    logits and logprobs fp32; others int32
Layout    all contiguous; offsets of logits are int64
Method    that of logprobs.py
Grid      one program a row
Cost      two sweeps over a live row, and one group of V / GROUPS logits a token
Rows      independent; the sum is one of whole numbers (of 2**-40 of the likeliest token) and has no order
Errors    ContractError from the launcher for any line above
Oracle    tspec/kernels/reference/draft.py::top_tokens
"""

from typing import Any

import torch
import triton
import triton.language as tl

from tspec.kernels.cuda import logprobs as parts
from tspec.kernels.cuda.choose import AFTER_ALL, NO_TOKEN
from tspec.kernels.cuda.launch import check_tensors
from tspec.kernels.cuda.logprobs import NUM_WARPS, best_of_groups, log_sum_of, next_of_group
from tspec.kernels.cuda.scores import find_nodes


@triton.jit(do_not_specialize=["rows_each"])
def _top_tokens(
    tokens_ptr, logprobs_ptr, logits_ptr, num_nodes_ptr, token_ids_ptr, rows_each, vocab,
    MOST: tl.constexpr, PLACES: tl.constexpr, GROUPS: tl.constexpr, MEMBERS: tl.constexpr, USE_PDL: tl.constexpr,
):  # fmt: skip
    if USE_PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    _, _, live = find_nodes(num_nodes_ptr, row, row >= 0, rows_each)
    place = tl.arange(0, PLACES)
    found = tl.full((PLACES,), NO_TOKEN, tl.int32)
    logprobs = tl.full((PLACES,), float("-inf"), tl.float32)
    if live:
        row_ptr = logits_ptr + row * vocab
        best, tokens = best_of_groups(row_ptr, vocab, GROUPS)
        top = tl.max(best, axis=0)
        if top > float("-inf"):
            log_sum = log_sum_of(row_ptr, vocab, top, GROUPS)
            for rank in range(tl.minimum(vocab, MOST)):
                value = tl.max(best, axis=0)
                token = tl.min(tl.where(best == value, tokens, AFTER_ALL), axis=0)
                is_found = place == tl.where(value > float("-inf"), rank, -1)
                found = tl.where(is_found, token, found)
                logprobs = tl.where(is_found, (value - top) - log_sum, logprobs)
                next_value, next_token = next_of_group(row_ptr, vocab, value, token, GROUPS, MEMBERS)
                best = tl.where(tokens == token, next_value, best)
                tokens = tl.where(tokens == token, next_token, tokens)
            if token_ids_ptr is not None:
                is_found = found >= 0
                found = tl.where(
                    is_found, tl.load(token_ids_ptr + found.to(tl.int64), mask=is_found, other=0), found
                )
    tl.store(tokens_ptr + row * MOST + place, found, mask=place < MOST)
    tl.store(logprobs_ptr + row * MOST + place, logprobs, mask=place < MOST)


def constexprs(vocab: int, most: int, launch_pdl: bool) -> dict[str, Any]:
    """Compile-time arguments of the kernel."""
    return parts.constexprs(vocab, most, launch_pdl)


def top_tokens(tokens, logprobs, logits, num_nodes, token_ids=None, *, most: int, launch_pdl=False) -> None:
    """Launch; see the module."""
    batch, rows_each, vocab = logits.shape
    found = (batch, rows_each, most)
    shapes = {
        "tokens": (tokens, found, torch.int32),
        "logprobs": (logprobs, found, torch.float32),
        "logits": (logits, (batch, rows_each, vocab), torch.float32),
        "num_nodes": (num_nodes, (batch,), torch.int32),
        "token_ids": (token_ids, (vocab,), torch.int32),
    }
    check_tensors("top_tokens", shapes)
    if logits.numel() == 0:
        return
    options = {"launch_pdl": True} if launch_pdl else {}
    _top_tokens[(batch * rows_each,)](
        tokens, logprobs, logits, num_nodes, token_ids, rows_each, vocab,
        **constexprs(vocab, most, launch_pdl), num_warps=NUM_WARPS, enable_fp_fusion=False, **options,
    )  # fmt: skip
