"""What top-k, top-p and min-p keep of a row of logits, found without sorting the vocabulary.

What is kept are always the first tokens in the order of falling scores, so that a score and a token say it all. The
search throws away blocks of 64 tokens whose largest logit shows that none of them is kept, lists the rest, and finds
the last kept score by histograms over the bits of the scores: 11 bits, 11 more within the bin where the limit is
reached, then the last 10. Masses are float32, added as float64 in an order that the row alone decides.

Shapes    logits float32 [rows, V] dense; threshold, log_sum float32 and first_tie int32 at [place]
Rows      independent; one thread claims a row
Cost      reads a row once for top-k, twice for top-p; lists what may be kept, the whole row where scores are flat
Oracle    tspec/kernels/reference/sampling.py
"""

import math
from typing import NamedTuple

import numpy as np

from tspec.kernels.cpu.requests import sequence_of
from tspec.kernels.cpu.simd import (
    LANES,
    load_f32,
    load_f64,
    load_i32,
    splat,
    store,
    store_f32,
    store_f64,
    store_i32,
)
from tspec.kernels.cpu.sync import atomic_add
from tspec.kernels.cpu.token_blocks import (
    BLOCK,
    BLOCK_BYTES,
    LOWEST,
    block_mass,
    block_max,
    num_blocks,
    score_block,
)
from tspec.kernels.jit import native

ONE, ZERO = np.float32(1.0), np.float32(0.0)
HIGHEST = np.float32(np.inf)

BINS = 1 << 11

LEVELS = (21, 10, 0)
"""Bits below those of each histogram; the last overlaps the one before it by a bit, which is the same in all."""

_SLACK = 0.999
"""Tokens are left out by their mass if they are below the bound by more than rounding could explain."""


class Work(NamedTuple):
    """Scratch of one thread: a block of scores; the largest logit of each block; entries (score, token, mass); bins."""

    block: int
    tops: int
    scores: int
    tokens: int
    masses: int
    bins: int


class Filter(NamedTuple):
    """What is asked of a row."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float


def kept_scratch_bytes(vocab: int) -> int:
    """Bytes of scratch of one thread. Python's own code runs: a native call would be compiled when a request comes."""
    blocks = num_blocks.py_func(vocab)
    return BINS * 8 + BLOCK_BYTES + (blocks + 3 * _room.py_func(blocks)) * 4


@native()
def _room(blocks):
    """Entries that there is room for: all tokens, and a block more that is written ahead."""
    return (blocks + 1) * BLOCK


@native()
def carve_work(scratch, vocab):
    """Divide the scratch of one thread."""
    block = scratch + BINS * 8
    tops = block + BLOCK_BYTES
    scores = tops + num_blocks(vocab) * 4
    room = _room(num_blocks(vocab)) * 4
    return Work(block, tops, scores, scores + room, scores + 2 * room, scratch)


@native()
def find_kept(
    counter,
    num_rows,
    requests,
    place,
    threshold,
    first_tie,
    log_sum,
    logits,
    vocab,
    top_k,
    top_p,
    min_p,
    scratch,
):
    """See the module. top_k int32 [B], top_p and min_p float32 [B]. `scratch` is this thread's."""
    work = carve_work(scratch, vocab)
    row = atomic_add(counter, 1)
    while row < num_rows:
        here, seq = load_i32(place + row * 4) * 4, sequence_of(requests, row) * 4
        asked = Filter(
            load_f32(requests.temperature + seq),
            load_i32(top_k + seq),
            np.float64(load_f32(top_p + seq)),
            np.float64(load_f32(min_p + seq)),
        )
        lowest, tie, total = LOWEST, 0, 0.0
        if asked.temperature > ZERO:
            lowest, tie, total = keep_row(logits + row * vocab * 4, vocab, asked, work)
        store_f32(threshold + here, lowest)
        store_i32(first_tie + here, np.int32(tie))
        store_f32(log_sum + here, np.float32(total))
        row = atomic_add(counter, 1)


@native()
def keep_row(logits, vocab, asked, work):
    """(threshold, first_tie, log_sum) of one row that is sampled from."""
    best = find_tops(logits, vocab, work.tops) / asked.temperature
    if best == LOWEST:
        return LOWEST, 0, 0.0
    if best == HIGHEST:  # so huge that nothing else has a chance
        return best, 0, np.float64(best)
    has_top_k = 0 < asked.top_k < vocab
    is_all = asked.top_p >= 1.0 and asked.min_p <= 0.0
    floor = -np.inf if asked.min_p <= 0.0 else np.float64(best) + math.log(asked.min_p)
    if has_top_k:
        kth = _top_k_score(logits, vocab, asked, work)
        count = _list_entries(logits, vocab, asked.temperature, kth, work)
        total = _weigh(count, best, work)
        if is_all:
            return np.float32(kth), 0, best + math.log(total)
        count = _drop_below(count, floor, work)
    else:
        total = _total_mass(logits, vocab, asked.temperature, best, work)
        if is_all:
            return LOWEST, 0, best + math.log(total)
        if asked.top_p < 1.0:
            # Tokens of less mass than this have less than 1 - top_p together: the limit is reached before them.
            too_small = _SLACK * (1.0 - asked.top_p) * total / vocab
            floor = max(floor, np.float64(best) + math.log(too_small))
        count = _list_entries(logits, vocab, asked.temperature, floor, work)
        _weigh(count, best, work)
    return _keep_top_p(count, asked.top_p * total if asked.top_p < 1.0 else np.inf, best, work)


@native()
def _keep_top_p(count, limit, best, work):
    """Keep entries until their masses reach `limit`; (threshold, first_tie, log_sum)."""
    lowest, total = HIGHEST, 0.0
    for at in range(count):
        lowest = min(lowest, load_f32(work.scores + at * 4))
        total += load_f32(work.masses + at * 4)
    if total < limit:
        return lowest, 0, best + math.log(total)
    score, above, ties = select(count, limit, work)
    mass = np.float64(load_f32(work.masses))
    taken = 1
    if mass > 0.0:
        taken = min(ties, max(1, int(min((limit - above) / mass, np.float64(ties)))))
    while taken < ties and above + taken * mass < limit:
        taken += 1
    while taken > 1 and above + (taken - 1) * mass >= limit:
        taken -= 1
    tie = 0 if taken == ties else load_i32(work.tokens + (ties - taken) * 4)
    return score, tie, best + math.log(above + taken * mass)


@native()
def find_tops(logits, vocab, tops):
    """Write the largest logit of each block, and return the largest of all."""
    best = LOWEST
    for block in range(num_blocks(vocab)):
        top = block_max(logits, block * BLOCK, vocab)
        store_f32(tops + block * 4, top)
        best = max(best, top)
    return best


@native()
def _total_mass(logits, vocab, temperature, best, work):
    """The sum of exp(score - best) of the row."""
    total = 0.0
    for block in range(num_blocks(vocab)):
        score_block(work.block, logits, block * BLOCK, vocab, temperature)
        total += block_mass(work.block, work.block, best)
    return total


@native()
def _top_k_score(logits, vocab, asked, work):
    """The score of the k-th token; -inf where fewer tokens have a number above that."""
    floor = -np.inf
    blocks = num_blocks(vocab)
    if asked.top_k <= blocks:
        # As many blocks have a token at or above their k-th largest top: no kept token is below it.
        for block in range(blocks):
            _write_entry(block, load_f32(work.tops + block * 4) / asked.temperature + ZERO, block, work)
        floor = np.float64(select(blocks, np.float64(asked.top_k), work)[0])
    count = _list_entries(logits, vocab, asked.temperature, floor, work)
    if count <= asked.top_k:
        return floor
    for at in range(count):
        store_f32(work.masses + at * 4, ONE)
    return np.float64(select(count, np.float64(asked.top_k), work)[0])


@native()
def _write_entry(at, score, token, work):
    """One entry of mass 1."""
    store_f32(work.scores + at * 4, score)
    store_i32(work.tokens + at * 4, np.int32(token))
    store_f32(work.masses + at * 4, ONE)


@native()
def _list_entries(logits, vocab, temperature, floor, work):
    """List the tokens whose score is at least `floor`, and not -inf, in order; returns how many. Weighs nothing."""
    count = 0
    for block in range(num_blocks(vocab)):
        if np.float64(load_f32(work.tops + block * 4) / temperature) < floor:
            continue
        score_block(work.block, logits, block * BLOCK, vocab, temperature)
        for at in range(BLOCK):
            score = load_f32(work.block + at * 4)
            store_f32(work.scores + count * 4, score)
            store_i32(work.tokens + count * 4, np.int32(block * BLOCK + at))
            count += int(np.float64(score) >= floor and score > LOWEST)
    return count


@native()
def _weigh(count, best, work):
    """Give each entry its mass exp(score - best); returns the sum."""
    for at in range(count, (count + BLOCK - 1) // BLOCK * BLOCK):
        store_f32(work.scores + at * 4, LOWEST)
    total = 0.0
    for at in range(0, count * 4, BLOCK_BYTES):
        total += block_mass(work.masses + at, work.scores + at, best)
    return total


@native()
def _drop_below(count, floor, work):
    """Drop the entries whose score is below `floor`; returns how many are left."""
    left = 0
    for at in range(count):
        score = load_f32(work.scores + at * 4)
        _move_entry(at, left, work)
        left += int(np.float64(score) >= floor)
    return left


@native()
def _move_entry(source, target, work):
    store_f32(work.scores + target * 4, load_f32(work.scores + source * 4))
    store_i32(work.tokens + target * 4, load_i32(work.tokens + source * 4))
    store_f32(work.masses + target * 4, load_f32(work.masses + source * 4))


@native()
def select(count, limit, work):
    """The score at which the masses of the entries, from the highest score down, reach `limit`.

    Returns (score, mass of all higher scores, entries with that score); these entries come to stand first, in order,
    and the others are lost. The masses of all entries have to reach the limit.
    """
    above = 0.0
    for shift in LEVELS:
        here, above = _find_bin(count, limit, above, shift, work)
        left = 0
        for at in range(count):
            is_here = _bin_of(work.scores + at * 4, shift) == here
            _move_entry(at, left, work)
            left += int(is_here)
        count = left
    return load_f32(work.scores), above, count


@native()
def _bin_of(score, shift):
    """Some bits of the float32 at address `score`, of those that order as the number does."""
    bits = np.int64(load_i32(score))
    ordered = bits + (1 << 31) if bits >= 0 else -1 - bits
    return (ordered >> shift) & (BINS - 1)


@native()
def _find_bin(count, limit, above, shift, work):
    """The bin in which the masses from the highest bin down, after `above`, reach `limit`; and the mass above it.

    The last bin with any mass where rounding keeps them from it.
    """
    for at in range(0, BINS * 8, LANES * 4):
        store(work.bins + at, splat(ZERO))
    highest = 0
    for at in range(count):
        found = _bin_of(work.scores + at * 4, shift)
        place = work.bins + found * 8
        store_f64(place, load_f64(place) + load_f32(work.masses + at * 4))
        highest = max(highest, found)
    here, higher = highest, above
    for found in range(highest, -1, -1):
        mass = load_f64(work.bins + found * 8)
        if mass > 0.0:
            here, above = found, higher
            higher += mass
            if higher >= limit:
                break
    return here, above
