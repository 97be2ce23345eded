"""The target's own token after each row, from logits that were written.

    sample   argmax of logits / temperature + noise over the kept tokens; argmax of the logits at temperature 0

Rows      dense; one thread claims a row, whose token follows from the row alone
Cost      reads the logits once; noise is drawn for blocks of 64 tokens that can still win, and for no others
Oracle    tspec/kernels/reference/sampling.py
Source    Gumbel-max, Maddison et al., A* Sampling (2014), section 2
"""

import numpy as np

from tspec.core.noise import TARGET
from tspec.core.sampling import NO_TOKEN
from tspec.kernels.cpu import simd
from tspec.kernels.cpu.noise import LARGEST_GUMBEL, fill_gumbel
from tspec.kernels.cpu.requests import draw_of
from tspec.kernels.cpu.simd import LANES, load, load_f32, load_i32, store, store_i32
from tspec.kernels.cpu.sync import atomic_add
from tspec.kernels.cpu.token_blocks import BLOCK, BLOCK_BYTES, LOWEST, block_max, score_block
from tspec.kernels.jit import native

NOTHING = np.int32(NO_TOKEN)
NO_CHANCE = np.float32(LARGEST_GUMBEL)
ZERO = np.float32(0.0)

SAMPLE_SCRATCH_BYTES = 2 * BLOCK_BYTES
"""Scratch of one thread: a block of scores, and its noise."""


@native()
def sample(counter, num_rows, requests, place, out, logits, vocab, threshold, first_tie, scratch):
    """out[place[row]] = the token of row `row` of `logits` [rows, vocab]. `threshold`, `first_tie`: find_kept, or 0."""
    row = atomic_add(counter, 1)
    while row < num_rows:
        here = load_i32(place + row * 4)
        temperature, seed, position = draw_of(requests, row)
        line = logits + row * vocab * 4
        if temperature > ZERO:
            lowest, tie = LOWEST, np.int32(0)
            if threshold != 0:
                lowest, tie = load_f32(threshold + here * 4), load_i32(first_tie + here * 4)
            token = draw_token(line, vocab, temperature, seed, position, TARGET, lowest, tie, scratch)
        else:
            token = best_token(line, vocab)
        store_i32(out + here * 4, token)
        row = atomic_add(counter, 1)


@native()
def best_token(logits, vocab):
    """The lowest token of the largest logit; NO_TOKEN if none is above minus infinity."""
    best, token = LOWEST, NOTHING
    for start in range(0, vocab, BLOCK):
        if block_max(logits, start, vocab) > best:
            for candidate in range(start, min(start + BLOCK, vocab)):
                logit = load_f32(logits + candidate * 4)
                if logit > best:
                    best, token = logit, np.int32(candidate)
    return token


@native()
def draw_token(logits, vocab, temperature, seed, position, stream, threshold, first_tie, scratch):
    """The lowest token of the largest score plus noise of `stream`, of those that are kept."""
    noise = scratch + BLOCK_BYTES
    best, token = LOWEST, NOTHING
    for start in range(0, vocab, BLOCK):
        top = block_max(logits, start, vocab) / temperature
        if top < threshold or not top + NO_CHANCE > best:
            continue
        score_block(scratch, logits, start, vocab, temperature)
        fill_gumbel(noise, seed, position, stream, start)
        for at in range(0, BLOCK_BYTES, LANES * 4):
            store(noise + at, simd.add(load(scratch + at), load(noise + at)))
        for at in range(min(BLOCK, vocab - start)):
            score, value = load_f32(scratch + at * 4), load_f32(noise + at * 4)
            is_kept = score > threshold or (score == threshold and start + at >= first_tie)
            if is_kept and value > best:
                best, token = value, np.int32(start + at)
    return token
