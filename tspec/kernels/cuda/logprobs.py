"""Log-probabilities of the tokens that were chosen, and of the likeliest ones, from the unedited logits.

    logprobs                  of chosen[j]: its logit less the log of the sum of exp(logit)
    top_tokens, top_logprobs  of the num_logprobs likeliest tokens; of equal ones the lowest token first

Entry j is about chosen[j], which was chosen after node j; with `path`, after the j-th node of the accepted path, the
root being the 0-th. What was not asked for (num_logprobs below 0: nothing; 0: the chosen token alone) and what was not
chosen (-1, past num_out, padding) is 0, and NO_TOKEN in top_tokens.

Shapes    logits: [B, R, V]; chosen, path, logprobs: [B, R]; num_logprobs, num_nodes, num_out: [B];
          top_tokens, top_logprobs: [B, R, most]. path and num_out may be None. R is T, or 1: the row is the last node's
Dtypes    logits, logprobs, top_logprobs fp32; others int32
Layout    all contiguous; offsets of logits are int64
Method    the best of GROUPS groups of tokens, every GROUPS-th one, are kept in registers; the best of them all comes
          out, and its group is read again for the next best
Grid      one program an entry
Cost      two sweeps over the row of an entry that was asked for, and one group of V / GROUPS logits a likeliest token
Rows      independent; the sum is one of whole numbers (of 2**-40 of the likeliest token) and has no order
Errors    ContractError from the launcher for any line above
Oracle    tspec/kernels/reference/sampling.py::token_logprobs
"""

from typing import Any

import torch
import triton
import triton.language as tl

from tspec.kernels.cuda.choose import AFTER_ALL, NO_TOKEN
from tspec.kernels.cuda.launch import check_tensors
from tspec.kernels.cuda.scores import clean, find_nodes, log_weight, weigh

GROUPS = 4096
"""Groups of tokens; and tokens of one step of a sweep."""

NUM_WARPS = 16


@triton.jit
def _find_row(path_ptr, num_out_ptr, num_nodes_ptr, entry, rows_each):
    """(sequence, the row of logits that `entry` is about, whether a token was chosen from it)"""
    sequence, _, live = find_nodes(num_nodes_ptr, entry, entry >= 0, rows_each)
    place = entry % rows_each
    row = entry
    if num_out_ptr is not None:
        live = place < tl.load(num_out_ptr + sequence)
    if path_ptr is not None:
        node = tl.load(path_ptr + entry - 1, mask=live & (place > 0), other=0)
        row = sequence * rows_each + node
    return sequence, row, live


@triton.jit
def best_of_groups(row_ptr, vocab, GROUPS: tl.constexpr):
    """Best logit and its lowest token of each group; a group without a token has AFTER_ALL."""
    best = tl.full((GROUPS,), float("-inf"), tl.float32)
    tokens = tl.full((GROUPS,), AFTER_ALL, tl.int32)
    for start in range(0, vocab, GROUPS):
        token = start + tl.arange(0, GROUPS)
        logits = clean(tl.load(row_ptr + token, mask=token < vocab, other=float("-inf")))
        is_better = (token < vocab) & ((logits > best) | (tokens == AFTER_ALL))
        best, tokens = tl.where(is_better, logits, best), tl.where(is_better, token, tokens)
    return best, tokens


@triton.jit
def log_sum_of(row_ptr, vocab, top, GROUPS: tl.constexpr):
    """The log of the sum of exp(logit - top) over a row."""
    weight = tl.zeros((GROUPS,), tl.int64)
    for start in range(0, vocab, GROUPS):
        token = start + tl.arange(0, GROUPS)
        logits = clean(tl.load(row_ptr + token, mask=token < vocab, other=float("-inf")))
        weight += weigh(logits, top)
    return log_weight(tl.sum(weight, axis=0))


@triton.jit
def next_of_group(row_ptr, vocab, value, token, GROUPS: tl.constexpr, MEMBERS: tl.constexpr):
    """The best of the group of `token` that comes after it: a smaller logit, or an equal one's higher token."""
    member = token % GROUPS + GROUPS * tl.arange(0, MEMBERS)
    logits = clean(tl.load(row_ptr + member, mask=member < vocab, other=float("-inf")))
    is_after = (member < vocab) & ((logits < value) | ((logits == value) & (member > token)))
    logits = tl.where(is_after, logits, float("-inf"))
    best = tl.max(logits, axis=0)
    return best, tl.min(tl.where(is_after & (logits == best), member, AFTER_ALL), axis=0)


@triton.jit(do_not_specialize=["rows_each"])
def _token_logprobs(
    logprobs_ptr, top_tokens_ptr, top_logprobs_ptr, logits_ptr, chosen_ptr, num_logprobs_ptr, num_nodes_ptr,
    num_out_ptr, path_ptr, rows_each, vocab,
    MOST: tl.constexpr, PLACES: tl.constexpr, GROUPS: tl.constexpr, MEMBERS: tl.constexpr, USE_PDL: tl.constexpr,
):  # fmt: skip
    if USE_PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    entry = tl.program_id(0).to(tl.int64)
    sequence, row, live = _find_row(path_ptr, num_out_ptr, num_nodes_ptr, entry, rows_each)
    chosen = tl.load(chosen_ptr + entry)
    wanted = tl.load(num_logprobs_ptr + sequence)
    place = tl.arange(0, PLACES)
    top_tokens, top_logprobs = tl.full((PLACES,), NO_TOKEN, tl.int32), tl.zeros((PLACES,), tl.float32)
    logprob = 0.0
    if live & (chosen >= 0) & (wanted >= 0):
        row_ptr = logits_ptr + row * vocab
        best, tokens = best_of_groups(row_ptr, vocab, GROUPS)
        top = tl.max(best, axis=0)
        log_sum = log_sum_of(row_ptr, vocab, top, GROUPS)
        logprob = (clean(tl.load(row_ptr + chosen)) - top) - log_sum
        for rank in range(tl.minimum(tl.minimum(wanted, MOST), vocab)):
            value = tl.max(best, axis=0)
            token = tl.min(tl.where(best == value, tokens, AFTER_ALL), axis=0)
            top_tokens = tl.where(place == rank, token, top_tokens)
            top_logprobs = tl.where(place == rank, (value - top) - log_sum, top_logprobs)
            next_value, next_token = next_of_group(row_ptr, vocab, value, token, GROUPS, MEMBERS)
            best = tl.where(tokens == token, next_value, best)
            tokens = tl.where(tokens == token, next_token, tokens)
    tl.store(logprobs_ptr + entry, logprob)
    tl.store(top_tokens_ptr + entry * MOST + place, top_tokens, mask=place < MOST)
    tl.store(top_logprobs_ptr + entry * MOST + place, top_logprobs, mask=place < MOST)


def constexprs(vocab: int, most: int, launch_pdl: bool) -> dict[str, Any]:
    """Compile-time arguments of the kernel."""
    members = triton.next_power_of_2(triton.cdiv(vocab, GROUPS))
    sizes = {"MOST": most, "PLACES": triton.next_power_of_2(most), "GROUPS": GROUPS, "MEMBERS": members}
    return {**sizes, "USE_PDL": launch_pdl}


def token_logprobs(
    logprobs, top_tokens, top_logprobs, logits, chosen, num_logprobs, num_nodes, num_out=None, path=None,
    *, most, launch_pdl=False,
) -> None:  # fmt: skip
    """Launch; see the module."""
    batch, rows_each, vocab = logits.shape
    rows = (batch, rows_each)
    shapes = {
        "logprobs": (logprobs, rows, torch.float32),
        "top_tokens": (top_tokens, (*rows, most), torch.int32),
        "top_logprobs": (top_logprobs, (*rows, most), torch.float32),
        "logits": (logits, (*rows, vocab), torch.float32),
        "chosen": (chosen, rows, torch.int32),
        "num_logprobs": (num_logprobs, (batch,), torch.int32),
        "num_nodes": (num_nodes, (batch,), torch.int32),
        "num_out": (num_out, (batch,), torch.int32),
        "path": (path, rows, torch.int32),
    }
    check_tensors("token_logprobs", shapes)
    if logits.numel() == 0:
        return
    options = {"launch_pdl": True} if launch_pdl else {}
    _token_logprobs[(batch * rows_each,)](
        logprobs, top_tokens, top_logprobs, logits, chosen, num_logprobs, num_nodes, num_out, path,
        rows_each, vocab, **constexprs(vocab, most, launch_pdl),
        num_warps=NUM_WARPS, enable_fp_fusion=False, **options,
    )  # fmt: skip
