"""A row of logits, 64 tokens at a time: the largest of a block, and its scores.

NaN counts as minus infinity: no comparison with it is true, and it is never the largest.
"""

import numpy as np

from tspec.kernels.cpu import simd
from tspec.kernels.cpu.simd import LANES, largest, load, load_f32, splat, store, store_f32, total
from tspec.kernels.jit import native

BLOCK = 64
BLOCK_BYTES = BLOCK * 4

LOWEST, ZERO = np.float32(-np.inf), np.float32(0.0)


@native()
def num_blocks(vocab):
    """Blocks of a row of logits."""
    return -(-vocab // BLOCK)


@native()
def block_max(logits, start, vocab):
    """The largest logit of the block that starts at token `start`; -inf if there is none."""
    best = splat(LOWEST)
    whole = min(start + BLOCK, vocab - vocab % LANES)
    for token in range(start, whole, LANES):
        best = simd.maximum(load(logits + token * 4), best)
    top = largest(best)
    for token in range(max(start, whole), min(start + BLOCK, vocab)):
        top = max(top, load_number(logits, token))
    return top


@native()
def load_number(logits, token):
    """One logit; -inf for NaN."""
    logit = load_f32(logits + token * 4)
    return logit if logit > LOWEST else LOWEST


@native()
def load_block(out, logits, start, vocab):
    """Copy one block of logits to out float32 [64]; -inf for NaN and past the vocabulary."""
    if start + BLOCK <= vocab:
        for at in range(0, BLOCK_BYTES, LANES * 4):
            store(out + at, simd.maximum(load(logits + start * 4 + at), splat(LOWEST)))
    else:
        for at in range(BLOCK):
            number = LOWEST
            if start + at < vocab:
                number = load_number(logits, start + at)
            store_f32(out + at * 4, number)


@native()
def score_block(out, logits, start, vocab, temperature):
    """`load_block`, divided by the temperature; a zero is never negative, so that bits compare as numbers do."""
    load_block(out, logits, start, vocab)
    for at in range(0, BLOCK_BYTES, LANES * 4):
        store(out + at, simd.add(simd.div(load(out + at), splat(temperature)), splat(ZERO)))


@native()
def block_mass(out, scores, best):
    """out float32 [64] = exp(scores - best), 0 for -inf; returns the sum, as float64 of a float32."""
    sums = splat(ZERO)
    for at in range(0, BLOCK_BYTES, LANES * 4):
        mass = simd.exp(simd.sub(load(scores + at), splat(best)))
        store(out + at, mass)
        sums = simd.add(sums, mass)
    return np.float64(total(sums))
