"""What top-k, top-p and min-p keep of each row of logits, as a threshold. Sorts nothing.

    threshold, first_tie  a token is kept if its score is above the threshold, or equal to it and the token at least
                          first_tie; scores are logits / temperature, NaN and -inf are never kept
    log_sum               the log of the sum of exp(score) over the kept

top-k keeps every tie of its last; of those, top-p keeps the tokens before which less than top_p of the mass lies, of
equal ones the highest token first; of those, min-p keeps what is at least min_p times the likeliest. Greedy rows,
padding, and rows without a logit above -inf get (-inf, 0, 0).

Shapes    logits: [B, R, V]; temperature, top_k, top_p, min_p, num_nodes: [B]; outputs: [B, R]. R is T, or 1
Dtypes    top_k, first_tie, num_nodes int32; others fp32
Layout    all contiguous; offsets of logits are int64
Method    the greatest key whose tokens, it and above, weigh enough is found two bits a sweep, by the weights of four
          keys at once. Sweeps run over the few thousand likeliest tokens, gathered in `partials`, where those weigh
          enough, else over the row. What counts as likely: as much as the GATHERED_RANK-th of the greatest logits of
          GROUPS groups of tokens
Grid      one program a row
Cost      two sweeps over the row and 16 over the gathered for top-k, 18 for top-p, one for min-p; a flat row: as many
          over the row, which lies in L2. Padding and greedy rows cost nothing
Rows      independent. Weights are whole numbers (of 2**-40 of the likeliest token), so that no sum has an order: the
          set is exact but for the rounding of exp, and for tokens below exp(-27) of the likeliest, which weigh nothing
Errors    ContractError from the launcher for any line above, and for `partials` smaller than scratch_bytes
Oracle    tspec/kernels/reference/sampling.py::find_kept
"""

from typing import Any

import torch
import triton
import triton.language as tl

from tspec.kernels.cuda.launch import ScratchBytes, check_tensors, hold_scratch
from tspec.kernels.cuda.scores import clean, find_nodes, log_weight, weigh

GROUPS = 4096
"""Groups of tokens whose greatest logits tell which tokens are likely; and tokens of one step of a sweep over a row."""

GATHERED_RANK = 1024
"""With V of many times GROUPS about 1.15 times as many tokens are gathered, and never fewer."""

MAX_GATHERED = 4096
"""Tokens that are gathered at most: a row that has more likely ones is flat, and is swept whole."""

BLOCK = 2048
"""Tokens of one step of a search."""

NUM_WARPS = 16

COUNT, MASS, TIES = (tl.constexpr(number) for number in range(3))
"""What a search weighs: tokens by their key, probability by its key, tokens of one key by their number."""


LEAST_KEY = tl.constexpr(0x007FFFFF)
"""The key of minus infinity."""


@triton.jit
def key_of(scores):
    """uint32 in the order of scores, and equal where they are; 0 is below all."""
    bits = tl.where(scores == 0, 0.0, scores).to(tl.uint32, bitcast=True)
    return tl.where(bits >> 31 != 0, ~bits, bits | 0x80000000)


@triton.jit
def _scores(values_ptr, place, count, temperature):
    """Scores at `place`; -inf past the last."""
    return tl.div_rn(clean(tl.load(values_ptr + place, mask=place < count, other=float("-inf"))), temperature)


@triton.jit
def _tokens(tokens_ptr, is_whole, place, count):
    """Tokens at `place`: those that were gathered, or in a whole row the place itself."""
    gathered = tl.load(tokens_ptr + place, mask=place < tl.where(is_whole, 0, count), other=0)
    return tl.where(is_whole, place, gathered)


@triton.jit
def _find_reaching(
    goal,
    cut,
    values_ptr,
    tokens_ptr,
    is_whole,
    count,
    temperature,
    top,
    BY: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The greatest uint32 such that it and all above weigh at least `goal`; 0 if nothing weighs as much."""
    digit = tl.arange(0, 4).to(tl.uint32)
    found, unit = tl.zeros((), tl.uint32), tl.full((), 1 << 30, tl.uint32)
    for _ in range(16):
        probes = found + digit * unit
        weight = tl.zeros((4,), tl.int64)
        for start in range(0, count, BLOCK):
            place = start + tl.arange(0, BLOCK)
            scores = _scores(values_ptr, place, count, temperature)
            if BY == TIES:
                order = _tokens(tokens_ptr, is_whole, place, count).to(tl.uint32)
                each = ((key_of(scores) == cut) & (place < count)).to(tl.int64)
            else:
                order = key_of(scores)
                each = weigh(scores, top) if BY == MASS else (scores > float("-inf")).to(tl.int64)
            weight += tl.sum(tl.where(order[:, None] >= probes[None, :], each[:, None], 0), axis=0)
        reached = tl.sum(((weight >= goal) & (digit > 0)).to(tl.int32), axis=0)
        found += reached.to(tl.uint32) * unit
        unit = unit >> 2
    return found


@triton.jit
def _weigh_around(cut, values_ptr, count, temperature, top, BLOCK: tl.constexpr):
    """(weight of the tokens above key `cut`, weight of those equal to it, number of those)"""
    above, equal = tl.zeros((BLOCK,), tl.int64), tl.zeros((BLOCK,), tl.int64)
    ties = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, count, BLOCK):
        scores = _scores(values_ptr, start + tl.arange(0, BLOCK), count, temperature)
        key, weight = key_of(scores), weigh(scores, top)
        is_tie = (key == cut) & (scores > float("-inf"))
        above += tl.where(key > cut, weight, 0)
        equal += tl.where(is_tie, weight, 0)
        ties += is_tie.to(tl.int32)
    return tl.sum(above, axis=0), tl.sum(equal, axis=0), tl.sum(ties, axis=0)


@triton.jit
def _greatest(row_ptr, vocab, temperature, GROUPS: tl.constexpr):
    """The greatest score of each of GROUPS groups of a row's tokens, every GROUPS-th one."""
    greatest = tl.full((GROUPS,), float("-inf"), tl.float32)
    for start in range(0, vocab, GROUPS):
        greatest = tl.maximum(greatest, _scores(row_ptr, start + tl.arange(0, GROUPS), vocab, temperature))
    return greatest


@triton.jit
def _gather(
    gathered_ptr, tokens_ptr, row_ptr, vocab, temperature, greatest,
    GROUPS: tl.constexpr, RANK: tl.constexpr, MAX_GATHERED: tl.constexpr,
):  # fmt: skip
    """Write the likely tokens and their logits, in the order of tokens, as many as there is room for.

    Returns (how many there are, the weight of all tokens, the key from which on they are all there); none and no key
    where there are too many.
    """
    keys, floor, unit = key_of(greatest), tl.zeros((), tl.uint32), tl.full((), 1 << 31, tl.uint32)
    for _ in range(32):
        is_ranked = tl.sum((keys >= floor + unit).to(tl.int32), axis=0) >= RANK
        floor = tl.where(is_ranked, floor + unit, floor)
        unit = unit >> 1
    top, num = tl.max(greatest, axis=0), tl.zeros((), tl.int32)
    total = tl.zeros((), tl.int64)
    for start in range(0, vocab, GROUPS):
        token = start + tl.arange(0, GROUPS)
        logits = clean(tl.load(row_ptr + token, mask=token < vocab, other=float("-inf")))
        scores = tl.div_rn(logits, temperature)
        total += tl.sum(weigh(scores, top), axis=0)
        is_likely = (key_of(scores) >= floor) & (scores > float("-inf"))
        place = num + tl.cumsum(is_likely.to(tl.int32), axis=0) - 1
        mask = is_likely & (place < MAX_GATHERED)
        tl.store(gathered_ptr + place, logits, mask=mask)
        tl.store(tokens_ptr + place, token, mask=mask)
        num += tl.sum(is_likely.to(tl.int32), axis=0)
    tl.debug_barrier()
    floor = tl.where(floor <= LEAST_KEY, 0, floor)
    if num > MAX_GATHERED:
        num, floor = 0, tl.full((), 0xFFFFFFFF, tl.uint32)
    return num, total, floor


@triton.jit
def _describe(
    cut, first_tie, min_p, values_ptr, tokens_ptr, is_whole, count, temperature, top, BLOCK: tl.constexpr
):
    """(threshold, first_tie, log_sum) of what min-p leaves of the tokens above `cut`, and of its from first_tie on."""
    limit = tl.where(min_p > 0, tl.log(tl.where(min_p > 0, min_p, 1.0)), float("-inf"))
    weight, least = tl.zeros((BLOCK,), tl.int64), tl.full((BLOCK,), float("inf"), tl.float32)
    for start in range(0, count, BLOCK):
        place = start + tl.arange(0, BLOCK)
        scores = _scores(values_ptr, place, count, temperature)
        key, token = key_of(scores), _tokens(tokens_ptr, is_whole, place, count)
        kept = (key > cut) | ((key == cut) & (token >= first_tie))
        kept = kept & (scores > float("-inf")) & (scores - top >= limit)
        weight += tl.where(kept, weigh(scores, top), 0)
        least = tl.minimum(least, tl.where(kept, scores, float("inf")))
    threshold = tl.min(least, axis=0)
    first_tie = tl.where(key_of(threshold) == cut, first_tie, 0)
    return threshold, first_tie, top + log_weight(tl.sum(weight, axis=0))


@triton.jit
def _top_p(
    top_p, total, cut, lowest, row_ptr, vocab, values_ptr, tokens_ptr, num, temperature, top,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """(key, its first token) of the likeliest tokens, of those from key `cut` on, that weigh top_p of their weight."""
    if (cut > 0) | (total == 0):
        is_whole = cut < lowest
        values, count = tl.where(is_whole, row_ptr, values_ptr), tl.where(is_whole, vocab, num)
        above, equal, ties = _weigh_around(cut, values, count, temperature, top, BLOCK)
        total = above + equal
    product = top_p.to(tl.float64) * total.to(tl.float64)
    goal = product.to(tl.int64)
    goal += (goal.to(tl.float64) < product).to(tl.int64)
    gathered, _, _ = _weigh_around(0, values_ptr, num, temperature, top, BLOCK)
    is_whole = (lowest > 0) & (gathered < goal)
    values, count = tl.where(is_whole, row_ptr, values_ptr), tl.where(is_whole, vocab, num)
    cut = _find_reaching(goal, cut, values, tokens_ptr, is_whole, count, temperature, top, MASS, BLOCK)
    above, equal, ties = _weigh_around(cut, values, count, temperature, top, BLOCK)
    one = tl.maximum(equal // tl.maximum(ties, 1), 1)  # ties weigh the same
    kept, first_tie = (goal - above + one - 1) // one, 0
    if kept < ties:  # those before which less than the goal lies
        tie = _find_reaching(kept, cut, values, tokens_ptr, is_whole, count, temperature, top, TIES, BLOCK)
        first_tie = tie.to(tl.int32)
    return cut, first_tie


@triton.jit(do_not_specialize=["rows_each"])
def _find_kept(
    threshold_ptr, first_tie_ptr, log_sum_ptr, logits_ptr, temperature_ptr, top_k_ptr, top_p_ptr, min_p_ptr,
    num_nodes_ptr, values_ptr, tokens_ptr, rows_each, vocab,
    GROUPS: tl.constexpr, RANK: tl.constexpr, MAX_GATHERED: tl.constexpr, BLOCK: tl.constexpr,
    USE_PDL: tl.constexpr,
):  # fmt: skip
    if USE_PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    sequence, _, live = find_nodes(num_nodes_ptr, row, row >= 0, rows_each)
    temperature = tl.load(temperature_ptr + sequence, mask=live, other=0.0)
    threshold, first_tie, log_sum = float("-inf"), 0, 0.0
    if temperature > 0:
        row_ptr = logits_ptr + row * vocab
        greatest = _greatest(row_ptr, vocab, temperature, GROUPS)
        top = tl.max(greatest, axis=0)
        if top > float("-inf"):
            top_k, top_p = tl.load(top_k_ptr + sequence), tl.load(top_p_ptr + sequence)
            top_k = tl.where(top_k < vocab, top_k, 0)
            values_ptr += row * MAX_GATHERED
            tokens_ptr += row * MAX_GATHERED
            # What is gathered: `num` tokens, all of those from key `lowest` on.
            num, total = 0, tl.zeros((), tl.int64)
            lowest, cut = tl.full((), 0xFFFFFFFF, tl.uint32), tl.zeros((), tl.uint32)
            if ((top_k > 0) | (top_p < 1)) & (vocab > MAX_GATHERED):
                num, total, lowest = _gather(
                    values_ptr, tokens_ptr, row_ptr, vocab, temperature, greatest, GROUPS, RANK, MAX_GATHERED
                )
            if top_k > 0:
                is_whole = (lowest > 0) & (num < top_k)
                values, count = tl.where(is_whole, row_ptr, values_ptr), tl.where(is_whole, vocab, num)
                cut = _find_reaching(
                    top_k, cut, values, tokens_ptr, is_whole, count, temperature, top, COUNT, BLOCK
                )
            if top_p < 1:
                cut, first_tie = _top_p(
                    top_p, total, cut, lowest,
                    row_ptr, vocab, values_ptr, tokens_ptr, num, temperature, top, BLOCK,
                )  # fmt: skip
            is_whole = cut < lowest
            values, count = tl.where(is_whole, row_ptr, values_ptr), tl.where(is_whole, vocab, num)
            threshold, first_tie, log_sum = _describe(
                cut, first_tie, tl.load(min_p_ptr + sequence),
                values, tokens_ptr, is_whole, count, temperature, top, BLOCK,
            )  # fmt: skip
    tl.store(threshold_ptr + row, threshold)
    tl.store(first_tie_ptr + row, first_tie)
    tl.store(log_sum_ptr + row, log_sum)


def scratch_bytes(rows: int, vocab: int) -> ScratchBytes:
    """What `find_kept` needs for `rows` rows: a logit and a token of each that may be gathered."""
    return ScratchBytes(8 * rows * MAX_GATHERED if vocab > MAX_GATHERED else 0, 0)


def constexprs(launch_pdl: bool) -> dict[str, Any]:
    """Compile-time arguments of the kernel."""
    sizes = {"GROUPS": GROUPS, "RANK": GATHERED_RANK, "MAX_GATHERED": MAX_GATHERED, "BLOCK": BLOCK}
    return {**sizes, "USE_PDL": launch_pdl}


def find_kept(
    threshold, first_tie, log_sum, logits, temperature, top_k, top_p, min_p, num_nodes,
    *, scratch, launch_pdl=False,
) -> None:  # fmt: skip
    """Launch; see the module."""
    batch, rows_each, vocab = logits.shape
    shapes = {
        "threshold": (threshold, (batch, rows_each), torch.float32),
        "first_tie": (first_tie, (batch, rows_each), torch.int32),
        "log_sum": (log_sum, (batch, rows_each), torch.float32),
        "logits": (logits, (batch, rows_each, vocab), torch.float32),
        "temperature": (temperature, (batch,), torch.float32),
        "top_k": (top_k, (batch,), torch.int32),
        "top_p": (top_p, (batch,), torch.float32),
        "min_p": (min_p, (batch,), torch.float32),
        "num_nodes": (num_nodes, (batch,), torch.int32),
    }
    check_tensors("find_kept", shapes)
    if logits.numel() == 0:
        return
    rows = batch * rows_each
    need = scratch_bytes(rows, vocab)
    hold_scratch("find_kept", scratch, need)
    tokens = scratch.partials.view(torch.int32)[need.partials // 8 :]
    options = {"launch_pdl": True} if launch_pdl else {}
    _find_kept[(rows,)](
        threshold, first_tie, log_sum, logits, temperature, top_k, top_p, min_p, num_nodes,
        scratch.partials, tokens, rows_each, vocab,
        **constexprs(launch_pdl), num_warps=NUM_WARPS, enable_fp_fusion=False, **options,
    )  # fmt: skip
