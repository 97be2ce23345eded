"""Logits as a request wants them changed: bias, penalties, and tokens that are forbidden.

Shapes    logits, out float32 [rows, V] dense; edits int32 [B]; penalties float32 [B, 3]: repetition, presence,
          frequency; counts int32 and bias float32 [B, V]; mask int32 [B, R, words], one bit a token
Rows      independent; one thread claims a row. The counts of a node are those of its sequence and of its path: all
          tokens are edited by the first, then those of the path once more by both
Cost      reads and writes the logits, and the tables that a request uses; a row without edits is copied
Oracle    tspec/kernels/reference/sampling.py
"""

from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import types

from tspec.core.sampling import EDIT_BIAS, EDIT_MASK, EDIT_PENALTIES
from tspec.kernels.cpu import simd
from tspec.kernels.cpu.requests import sequence_of
from tspec.kernels.cpu.simd import (
    I16,
    I32,
    LANES,
    VECTOR,
    _intrinsic,
    lanes,
    load,
    load_f32,
    load_i32,
    load_i64,
    load_vector,
    pointer,
    splat,
    store,
    store_f32,
    vector_of,
)
from tspec.kernels.cpu.sync import atomic_add
from tspec.kernels.cpu.token_blocks import LOWEST, load_number
from tspec.kernels.jit import native

ZERO = np.float32(0.0)


class Edits(NamedTuple):
    """What one row is edited by: flags of core/sampling.py, addresses of tables, penalties, and the tree's tokens."""

    flags: int
    counts: int
    bias: int
    mask: int
    repetition: float
    presence: float
    frequency: float
    tokens: int


def _penalise(builder: Any, line: Any, counts: Any, repetition: Any, presence: Any, frequency: Any) -> Any:
    """`penalise_one` of 16 tokens, with their counts at an address."""
    seen = load_vector(builder, counts, ir.VectorType(I32, LANES), 4)
    none = vector_of(0, seen.type)
    times = builder.sitofp(builder.ashr(seen, vector_of(1, seen.type)), VECTOR)
    is_positive = builder.fcmp_ordered(">", line, vector_of(0.0))
    scaled = builder.select(is_positive, builder.fdiv(line, repetition), builder.fmul(line, repetition))
    line = builder.select(builder.icmp_signed(">", seen, none), scaled, line)
    was_output = builder.fcmp_ordered(">", times, vector_of(0.0))
    once = builder.select(was_output, presence, vector_of(0.0))
    return builder.fsub(line, builder.fadd(builder.fmul(frequency, times), once))


def _allow(builder: Any, line: Any, bits: Any) -> Any:
    """-inf for those of 16 tokens whose bit at an address is 0."""
    allowed = builder.bitcast(builder.load(pointer(builder, bits, I16)), ir.VectorType(ir.IntType(1), LANES))
    return builder.select(allowed, line, vector_of(-np.inf))


penalise = _intrinsic(lanes, (lanes, types.int64, lanes, lanes, lanes), _penalise)
allow = _intrinsic(lanes, (lanes, types.int64), _allow)


@native()
def penalise_one(logit, seen, edits):
    """One logit by the count of its token: twice the times it was output, and 1 if it is in the prompt."""
    times = np.float32(seen >> 1)
    if seen > 0:
        logit = logit / edits.repetition if logit > ZERO else logit * edits.repetition
    return logit - (edits.frequency * times + (edits.presence if times > ZERO else ZERO))


@native()
def edit_logits(
    counter,
    num_rows,
    requests,
    place,
    out,
    logits,
    vocab,
    edits,
    penalties,
    counts,
    bias,
    mask,
    tokens,
    ancestors,
):
    """See the module. `requests` says which sequence and node a row stands for."""
    row = atomic_add(counter, 1)
    while row < num_rows:
        seq, here = sequence_of(requests, row), load_i32(place + row * 4)
        mine = Edits(
            load_i32(edits + seq * 4),
            counts + seq * vocab * 4,
            bias + seq * vocab * 4,
            mask + here * ((vocab + 31) // 32) * 4,
            load_f32(penalties + seq * 12),
            load_f32(penalties + seq * 12 + 4),
            load_f32(penalties + seq * 12 + 8),
            tokens + seq * requests.max_nodes * 4,
        )
        path = _path_of(requests, row, here, ancestors)
        edit_row(out + row * vocab * 4, logits + row * vocab * 4, vocab, mine, path)
        row = atomic_add(counter, 1)


@native()
def _path_of(requests, row, here, ancestors):
    """Bits of the candidates above a row's node, and of itself. The root is in the counts; so is all of a prompt."""
    return np.int64(0) if requests.space else load_i64(ancestors + here * 8) & ~np.int64(1)


@native()
def edit_row(out, logits, vocab, edits, path):
    """One row: all tokens, and those of the path once more."""
    whole = vocab - vocab % LANES
    for token in range(0, whole, LANES):
        store(out + token * 4, _edited_lanes(logits, token, edits))
    for token in range(whole, vocab):
        store_f32(out + token * 4, _edited(logits, token, 0, edits))
    if edits.flags & EDIT_PENALTIES and path != 0:
        for node in range(1, 64):
            if (path >> node) & 1:
                token = load_i32(edits.tokens + node * 4)
                more = 2 * _times_on_path(token, path, edits.tokens)
                store_f32(out + token * 4, _edited(logits, token, more, edits))


@native()
def _times_on_path(token, path, tokens):
    times = 0
    for node in range(1, 64):
        if (path >> node) & 1 and load_i32(tokens + node * 4) == token:
            times += 1
    return times


@native()
def _edited_lanes(logits, token, edits):
    """16 tokens from `token` on."""
    line = simd.maximum(load(logits + token * 4), splat(LOWEST))
    if edits.flags & EDIT_BIAS:
        line = simd.add(line, load(edits.bias + token * 4))
    if edits.flags & EDIT_PENALTIES:
        line = penalise(
            line,
            edits.counts + token * 4,
            splat(edits.repetition),
            splat(edits.presence),
            splat(edits.frequency),
        )
    if edits.flags & EDIT_MASK:
        line = allow(line, edits.mask + token // 8)
    return line


@native()
def _edited(logits, token, more, edits):
    """One token, with `more` on its count."""
    logit = load_number(logits, token)
    if edits.flags & EDIT_BIAS:
        logit += load_f32(edits.bias + token * 4)
    if edits.flags & EDIT_PENALTIES:
        logit = penalise_one(logit, load_i32(edits.counts + token * 4) + more, edits)
    if edits.flags & EDIT_MASK and not (load_i32(edits.mask + token // 32 * 4) >> (token % 32)) & 1:
        logit = LOWEST
    return logit
