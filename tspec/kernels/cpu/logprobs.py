"""Log-probabilities of chosen tokens and of the likeliest ones, from logits as the model gave them.

Shapes    logits float32 [rows, V] dense; chosen int32, logprobs float32 [B, R]; top_tokens int32, top_logprobs
          float32 [B, R, N]; num_logprobs int32 [B]. With `path` int32 and `num_out`, entry j is about the j-th
          token of the output, which was chosen after node path[j - 1]; without, after node j
Rows      independent; one thread claims a row. Masses are added in blocks of 64, then as float64
Cost      reads a row twice; rows for which nothing is asked are not read
Oracle    tspec/kernels/reference/sampling.py
"""

import math
from typing import NamedTuple

import numpy as np

from tspec.core.sampling import NO_TOKEN
from tspec.kernels.cpu.kept import find_tops
from tspec.kernels.cpu.requests import sequence_of
from tspec.kernels.cpu.simd import load_f32, load_i32, store_f32, store_i32
from tspec.kernels.cpu.sync import atomic_add
from tspec.kernels.cpu.token_blocks import (
    BLOCK,
    BLOCK_BYTES,
    block_mass,
    load_block,
    load_number,
    num_blocks,
)
from tspec.kernels.jit import native

ZERO = np.float32(0.0)
NOTHING = np.int32(NO_TOKEN)


class Wanted(NamedTuple):
    """Addresses of what is asked: the tokens, how many likeliest ones, and where they were chosen (0: in place)."""

    chosen: int
    num_logprobs: int
    num_out: int
    path: int


class Found(NamedTuple):
    """Addresses of what is found, and the most likeliest tokens of an entry."""

    logprobs: int
    top_tokens: int
    top_logprobs: int
    most: int


def logprobs_scratch_bytes(vocab: int) -> int:
    """Bytes of scratch of one thread: a block of logits, and the largest logit of each block."""
    return BLOCK_BYTES + num_blocks.py_func(vocab) * 4


@native()
def token_logprobs(counter, num_rows, requests, place, row_start, logits, vocab, wanted, found, scratch):
    """See the module. The entry of dense row `row` is place[row]; row_start int32 [B] is a sequence's first row."""
    row = atomic_add(counter, 1)
    while row < num_rows:
        here, seq = load_i32(place + row * 4), sequence_of(requests, row)
        _clear_entry(here, found)
        source = row if requests.space else _source_row(requests, row, seq, here, row_start, wanted)
        token = load_i32(wanted.chosen + here * 4)
        num_top = min(load_i32(wanted.num_logprobs + seq * 4), found.most)
        if num_top >= 0 and source >= 0 and token >= 0:
            write_entry(logits + source * vocab * 4, vocab, token, num_top, here, found, scratch)
        row = atomic_add(counter, 1)


@native()
def _source_row(requests, row, seq, here, row_start, wanted):
    """The dense row that an entry's token was chosen from; -1 where the output is over."""
    entry = load_i32(requests.row_node + row * 4)
    if wanted.num_out != 0 and entry >= load_i32(wanted.num_out + seq * 4):
        return -1
    if wanted.path == 0 or entry == 0:
        return row
    return load_i32(row_start + seq * 4) + load_i32(wanted.path + (here - 1) * 4)


@native()
def _clear_entry(here, found):
    store_f32(found.logprobs + here * 4, ZERO)
    for at in range(here * found.most, (here + 1) * found.most):
        store_i32(found.top_tokens + at * 4, NOTHING)
        store_f32(found.top_logprobs + at * 4, ZERO)


@native()
def write_entry(logits, vocab, token, num_top, here, found, scratch):
    """One entry: log-softmax of its token, and of the likeliest ones, of equal ones the lowest first."""
    top_logprobs = found.top_logprobs + here * found.most * 4
    top_tokens = found.top_tokens + here * found.most * 4
    count, log_sum = list_likeliest(logits, vocab, num_top, top_tokens, top_logprobs, scratch)
    store_f32(found.logprobs + here * 4, np.float32(load_number(logits, token) - log_sum))
    for at in range(count):
        logprob = np.float64(load_f32(top_logprobs + at * 4)) - log_sum
        store_f32(top_logprobs + at * 4, np.float32(logprob))


@native()
def list_likeliest(logits, vocab, num_top, top_tokens, top_logits, scratch):
    """Write the `num_top` largest logits of a row and their tokens, the largest first, of equal ones the lowest token.

    Returns (how many there are, log of the sum of exp over the row).
    """
    tops = scratch + BLOCK_BYTES
    best = find_tops(logits, vocab, tops)
    total, count = 0.0, 0
    for block in range(num_blocks(vocab)):
        load_block(scratch, logits, block * BLOCK, vocab)
        top = load_f32(tops + block * 4)
        if num_top > 0 and (count < num_top or top > load_f32(top_logits + (num_top - 1) * 4)):
            for at in range(min(BLOCK, vocab - block * BLOCK)):
                logit = load_f32(scratch + at * 4)
                if count < num_top or logit > load_f32(top_logits + (num_top - 1) * 4):
                    insert(logit, block * BLOCK + at, count, num_top, top_tokens, top_logits)
                    count = min(count + 1, num_top)
        total += block_mass(scratch, scratch, best)
    return count, np.float64(best) + math.log(total)


@native()
def insert(logit, token, count, num_top, top_tokens, top_logits):
    """Put a token behind the `count` that are there and at least as likely; the last of `num_top` falls out."""
    at = min(count, num_top - 1)
    while at > 0 and load_f32(top_logits + (at - 1) * 4) < logit:
        store_f32(top_logits + at * 4, load_f32(top_logits + (at - 1) * 4))
        store_i32(top_tokens + at * 4, load_i32(top_tokens + (at - 1) * 4))
        at -= 1
    store_f32(top_logits + at * 4, logit)
    store_i32(top_tokens + at * 4, np.int32(token))
