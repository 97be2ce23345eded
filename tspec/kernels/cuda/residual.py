"""What is left of the target's law p after candidates were refused: sweeps over a vocabulary. Device functions only.

After a refusal of token x, drawn from q:  p becomes max(p - q, 0), normalised; q loses x, and is normalised again.
Refusals are vectors [NODES]: the tokens, the scale of q and the scale of what was left; the first `count` count. Token
-1 is none: p - q, of which nothing is taken away.

    load_laws    p and q of some tokens
    refuse       what is left of both
    sum_rest     of all tokens: what is left in all, and what q still holds
    draw_rest    a token drawn from what is left

Rows      sums are taken in an order that follows BLOCK and the vocabulary alone
Oracle    tspec/kernels/reference/accept_ratio.py
"""

import triton
import triton.language as tl

from tspec.core import noise
from tspec.core.sampling import NO_TOKEN
from tspec.kernels.cuda.noise import gumbel
from tspec.kernels.cuda.scores import clean, is_kept

RESIDUAL = tl.constexpr(noise.RESIDUAL)
NOTHING = tl.constexpr(NO_TOKEN)
NOTHING_LEFT = tl.constexpr(1e-30)
"""Less than any sum that is not all rounding; its inverse is still a float32."""


@triton.jit
def pick(vector, place):
    """One element of a vector of whole numbers or of floats that are finite."""
    return tl.sum(tl.where(tl.arange(0, vector.shape[0]) == place, vector, 0), axis=0)


@triton.jit
def inverse(total):
    """1 / total; 0 where rounding leaves nothing to scale."""
    return tl.where(total > NOTHING_LEFT, tl.div_rn(total * 0 + 1, tl.maximum(total, NOTHING_LEFT)), 0.0)


@triton.jit
def load_laws(
    logits_ptr, temperature, threshold, first_tie, log_sum, log_reach, draft_ptr, draft_index_ptr,
    start, vocab, BLOCK: tl.constexpr,
):  # fmt: skip
    """(token, p, q), each [BLOCK], of the tokens from `start` on; 0 past the vocabulary. `log_reach` scales p."""
    token = start + tl.arange(0, BLOCK)
    inside = token < vocab
    scores = clean(tl.load(logits_ptr + token, mask=inside, other=float("-inf")))
    scores = tl.div_rn(scores, tl.zeros_like(scores) + temperature)
    p = tl.exp(scores - log_sum + log_reach)
    p = tl.where(is_kept(scores, token, threshold, first_tie), p, 0.0)
    place, known = token, inside
    if draft_index_ptr is not None:
        place = tl.load(draft_index_ptr + token.to(tl.int64), mask=inside, other=-1)
        known = place >= 0
    q = tl.exp(clean(tl.load(draft_ptr + place, mask=known, other=float("-inf"))))
    return token, p, q


@triton.jit
def refuse(token, p, q, refused, scale_q, scale_rest, count):
    """(what is left of p, q) after `count` refusals."""
    for entry in range(count):
        p = tl.maximum(p - q * pick(scale_q, entry), 0.0) * pick(scale_rest, entry)
        q = tl.where(token == pick(refused, entry), 0.0, q)
    return p, q


@triton.jit
def sum_rest(
    logits_ptr, temperature, threshold, first_tie, log_sum, log_reach, draft_ptr, draft_index_ptr,
    refused, scale_q, scale_rest, count, vocab, BLOCK: tl.constexpr,
):  # fmt: skip
    """(sum of what is left of p, sum of q) after `count` refusals."""
    all_rest = tl.zeros((BLOCK,), tl.float32)
    all_q = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, vocab, BLOCK):
        token, p, q = load_laws(
            logits_ptr, temperature, threshold, first_tie, log_sum, log_reach, draft_ptr, draft_index_ptr,
            start, vocab, BLOCK,
        )  # fmt: skip
        rest, q = refuse(token, p, q, refused, scale_q, scale_rest, count)
        all_rest += rest
        all_q += q
    return tl.sum(all_rest, axis=0), tl.sum(all_q, axis=0)


@triton.jit
def draw_rest(
    logits_ptr, temperature, threshold, first_tie, log_sum, log_reach, draft_ptr, draft_index_ptr,
    refused, scale_q, scale_rest, count, seed, position, vocab, BLOCK: tl.constexpr,
):  # fmt: skip
    """The token with the largest log of what is left plus noise, the lowest of several; NO_TOKEN if nothing is."""
    best = tl.full((BLOCK,), float("-inf"), tl.float32)
    chosen = tl.full((BLOCK,), NOTHING, tl.int32)
    first = tl.zeros((1,), tl.int64)
    for start in range(0, vocab, BLOCK):
        token, p, q = load_laws(
            logits_ptr, temperature, threshold, first_tie, log_sum, log_reach, draft_ptr, draft_index_ptr,
            start, vocab, BLOCK,
        )  # fmt: skip
        rest, q = refuse(token, p, q, refused, scale_q, scale_rest, count)
        drawn = tl.reshape(gumbel(first + seed, first + position, start, RESIDUAL, BLOCK), (BLOCK,))
        value = tl.where(rest > 0, tl.log(tl.where(rest > 0, rest, 1.0)) + drawn, float("-inf"))
        is_better = value > best
        best = tl.where(is_better, value, best)
        chosen = tl.where(is_better, token, chosen)
    top = tl.max(best, axis=0)
    lowest = tl.min(tl.where(best == top, chosen, vocab), axis=0)
    return tl.where(top > float("-inf"), lowest, NOTHING)
