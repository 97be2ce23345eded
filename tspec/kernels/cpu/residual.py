"""What is left of the target's law p after candidates were refused, by sweeps over the vocabulary that write nothing.

After a refusal of token x, drawn from q:  p becomes max(p - q, 0), normalised; q loses x, and is normalised again. A
`Law` is one node's p and q; its refusals are a list of (token, scale of q, scale of what was left), REFUSAL_BYTES each.
A refused token has nothing left, and so can never come back.

    sum_rest    after the last refusal: what is left in all, and what q still holds
    draw_rest   a token drawn from what is left

Shapes    logits [V] fp32; draft [Q] fp32, log of q, over the target's tokens or those that `draft_index` int32 [V]
          points to; -1: unknown to the draft, q = 0
Dtypes    sweeps in fp32, sums of 64 tokens in fp32 and of those in fp64; chances of one token in fp64
Cost      reads the logits and q once, p and q by one exponential each, a few operations a refusal
Oracle    tspec/kernels/reference/accept_ratio.py
"""

import math
from typing import NamedTuple

import numpy as np
from llvmlite import ir
from numba import types

from tspec.core.noise import RESIDUAL
from tspec.core.sampling import NO_TOKEN
from tspec.kernels.cpu import simd
from tspec.kernels.cpu.noise import LARGEST_GUMBEL, fill_gumbel
from tspec.kernels.cpu.simd import (
    I32,
    LANES,
    VECTOR,
    broadcast,
    load,
    load_f32,
    load_i32,
    splat,
    store,
    store_f32,
    store_i32,
    vector_of,
)
from tspec.kernels.cpu.token_blocks import BLOCK, BLOCK_BYTES, LOWEST, load_block, load_number, score_block
from tspec.kernels.jit import native

ZERO = np.float32(0.0)
NOTHING = np.int32(NO_TOKEN)
NO_CHANCE = np.float32(LARGEST_GUMBEL)

P, Q, NOISE, REFUSALS = (BLOCK_BYTES * place for place in range(4))
"""Offsets in a thread's scratch."""

REFUSAL_BYTES = 12

NOTHING_LEFT = 1e-30
"""Less than any sum that is not all rounding; its inverse is still a float32."""


class Law(NamedTuple):
    """p and q after one node.

    logits, draft, draft_index  addresses; draft_index 0: q is over the target's own tokens
    threshold, first_tie        which tokens `find_kept` keeps; log_sum: of their exponentials
    log_reach                   log of a factor of p
    """

    logits: int
    vocab: int
    temperature: np.float32
    threshold: np.float32
    first_tie: int
    log_sum: np.float32
    log_reach: np.float32
    draft: int
    draft_index: int


_LANE_NUMBERS = ir.Constant(ir.VectorType(I32, LANES), list(range(LANES)))


def _keep(builder, scores, threshold, first_lane):
    """Scores above the threshold, and those equal to it from lane `first_lane` on; -inf for others."""
    limit = broadcast(builder, threshold, VECTOR)
    is_tie = builder.fcmp_ordered("==", scores, limit)
    is_late = builder.icmp_signed(">=", _LANE_NUMBERS, broadcast(builder, first_lane, _LANE_NUMBERS.type))
    is_kept = builder.or_(builder.fcmp_ordered(">", scores, limit), builder.and_(is_tie, is_late))
    return builder.select(is_kept, scores, vector_of(-math.inf))


def _without(builder, vector, lane):
    """0 in one lane; lanes outside the vector are none of it."""
    is_it = builder.icmp_signed("==", _LANE_NUMBERS, broadcast(builder, lane, _LANE_NUMBERS.type))
    return builder.select(is_it, vector_of(0.0), vector)


keep = simd._intrinsic(simd.lanes, (simd.lanes, types.float32, types.int32), _keep)
without = simd._intrinsic(simd.lanes, (simd.lanes, types.int32), _without)


@native()
def target_chance(law, token):
    """p of one token, float64."""
    score = np.float32(load_number(law.logits, token) / law.temperature)
    is_kept = score > law.threshold or (score == law.threshold and token >= law.first_tie)
    if not is_kept or score == LOWEST:
        return 0.0
    return math.exp(np.float64(score) - np.float64(law.log_sum) + np.float64(law.log_reach))


@native()
def draft_chance(law, token):
    """q of one token, float64."""
    place = token if law.draft_index == 0 else load_i32(law.draft_index + token * 4)
    if place < 0:
        return 0.0
    return math.exp(np.float64(load_number(law.draft, place)))


@native()
def rest_chance(law, token, refusals, count):
    """(what is left of p, q) of one token after `count` refusals, float64; q is not scaled yet."""
    rest, q = target_chance(law, token), draft_chance(law, token)
    for place in range(count):
        entry = refusals + place * REFUSAL_BYTES
        rest = max(rest - q * load_f32(entry + 4), 0.0) * load_f32(entry + 8)
        if load_i32(entry) == token:
            q = 0.0
    return rest, q


@native()
def add_refusal(entry, token, scale_q, scale_rest):
    """Write one entry of the list: rest = max(rest - q * scale_q, 0) * scale_rest, then q[token] = 0."""
    store_i32(entry, np.int32(token))
    store_f32(entry + 4, np.float32(scale_q))
    store_f32(entry + 8, np.float32(scale_rest))


@native()
def set_scale_rest(entry, scale):
    """Correct the last factor of an entry, once the sum is known that it has to bring to 1."""
    store_f32(entry + 8, np.float32(scale))


@native()
def inverse(total):
    """1 / total; 0 where rounding leaves nothing to scale."""
    return 1.0 / total if total > NOTHING_LEFT else 0.0


@native()
def _load_laws(law, start, scratch):
    """Write p and q of one block of 64 tokens to scratch; 0 past the vocabulary."""
    score_block(scratch + P, law.logits, start, law.vocab, law.temperature)
    if law.draft_index == 0:
        load_block(scratch + Q, law.draft, start, law.vocab)
    else:
        for at in range(BLOCK):
            place = np.int32(-1)
            if start + at < law.vocab:
                place = load_i32(law.draft_index + (start + at) * 4)
            store_f32(scratch + Q + at * 4, LOWEST if place < 0 else load_number(law.draft, place))
    for lane in range(0, BLOCK, LANES):
        scores = keep(load(scratch + P + lane * 4), law.threshold, np.int32(law.first_tie - start - lane))
        scores = simd.add(simd.sub(scores, splat(law.log_sum)), splat(law.log_reach))
        store(scratch + P + lane * 4, simd.exp(scores))
        store(scratch + Q + lane * 4, simd.exp(load(scratch + Q + lane * 4)))


@native()
def _refuse(at, first, refusals, count):
    """(what is left of p, q) of 16 tokens from `first` on, after `count` refusals; p and q lie at scratch `at`."""
    rest, q = load(at + P), load(at + Q)
    for place in range(count):
        entry = refusals + place * REFUSAL_BYTES
        rest = simd.maximum(simd.sub(rest, simd.mul(q, splat(load_f32(entry + 4)))), splat(ZERO))
        rest = simd.mul(rest, splat(load_f32(entry + 8)))
        q = without(q, np.int32(load_i32(entry) - first))
    return rest, q


@native()
def sum_rest(law, count, scratch):
    """(sum of what is left of p, sum of q) after `count` refusals, float64."""
    all_rest, all_q = 0.0, 0.0
    for start in range(0, law.vocab, BLOCK):
        _load_laws(law, start, scratch)
        rest_here, q_here = splat(ZERO), splat(ZERO)
        for lane in range(0, BLOCK, LANES):
            rest, q = _refuse(scratch + lane * 4, start + lane, scratch + REFUSALS, count)
            rest_here, q_here = simd.add(rest_here, rest), simd.add(q_here, q)
        all_rest += np.float64(simd.total(rest_here))
        all_q += np.float64(simd.total(q_here))
    return all_rest, all_q


@native()
def draw_rest(law, count, seed, position, scratch):
    """A token by its chance of what is left after `count` refusals; NO_TOKEN if nothing is."""
    best, token = LOWEST, NOTHING
    for start in range(0, law.vocab, BLOCK):
        _load_laws(law, start, scratch)
        top = splat(LOWEST)
        for lane in range(0, BLOCK, LANES):
            rest, _ = _refuse(scratch + lane * 4, start + lane, scratch + REFUSALS, count)
            rest = simd.log(rest)
            store(scratch + P + lane * 4, rest)
            top = simd.maximum(rest, top)
        if not simd.largest(top) + NO_CHANCE > best:
            continue
        fill_gumbel(scratch + NOISE, seed, position, RESIDUAL, start)
        for at in range(0, BLOCK_BYTES, LANES * 4):
            store(scratch + NOISE + at, simd.add(load(scratch + P + at), load(scratch + NOISE + at)))
        for at in range(min(BLOCK, law.vocab - start)):
            value = load_f32(scratch + NOISE + at * 4)
            if value > best:
                best, token = value, np.int32(start + at)
    return token
