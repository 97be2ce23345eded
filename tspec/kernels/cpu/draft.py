"""What a draft's tree is grown by: the likeliest tokens of a row, a drawn one, and the next level.

    top_tokens   the `most` likeliest tokens of each row, and their log-probabilities
    draw_draft   one token of each row by Gumbel-max, and the law that it was drawn from
    expand_tree  scores the candidates below a level, and makes the best of them the next one

Shapes    logits float32 [rows, V] dense; all else by place: tokens int32, logprobs float32 [B, R, N]; law float32
          [B, R, V]; row_scores float32, ancestors int64 [B, R]; next_… [B, W]; R is 1, T or W
Rows      independent; one thread claims a row, or a sequence's level. Masses as in logprobs.py
Oracle    tspec/kernels/reference/draft.py
Source    best candidates by cumulative confidence: EAGLE-2, arXiv:2406.16858, section 4.1
"""

import math
from typing import NamedTuple

import numpy as np

from tspec.core.sampling import NO_TOKEN
from tspec.kernels.cpu.frame import ROW_SEQ, place_map
from tspec.kernels.cpu.logprobs import insert, list_likeliest
from tspec.kernels.cpu.sampling import best_token, draw_token
from tspec.kernels.cpu.simd import load_f32, load_i32, load_i64, store_f32, store_i32, store_i64
from tspec.kernels.cpu.sync import atomic_add
from tspec.kernels.cpu.token_blocks import BLOCK, BLOCK_BYTES, LOWEST, block_mass, block_max, score_block
from tspec.kernels.jit import native

NOTHING = np.int32(NO_TOKEN)
ZERO, ONE = np.float32(0.0), np.float32(1.0)

DRAW_SCRATCH_BYTES = 2 * BLOCK_BYTES
"""Scratch of one thread of `draw_draft`: a block of scores, and its noise."""


class Laws(NamedTuple):
    """What tokens are drawn with: addresses of each sequence's settings, the noise, and how many tokens there are."""

    temperature: int
    seed: int
    prefix_len: int
    stream: int
    offset: int
    vocab: int


class Candidates(NamedTuple):
    """What hangs below a level: addresses of tokens and logprobs [B, rows, most]; row_scores and ancestors, or 0."""

    tokens: int
    logprobs: int
    row_scores: int
    ancestors: int
    rows: int
    most: int


class Level(NamedTuple):
    """Addresses of the next level's arrays [B, width], the number of its first node, and the depth of all of them."""

    tokens: int
    source: int
    scores: int
    ancestors: int
    depths: int
    width: int
    first_node: int
    depth: int


@native()
def _sequence(frame, space, row):
    return np.int64(row) if space else np.int64(load_i32(load_i64(frame + ROW_SEQ) + row * 4))


@native()
def _own_token(token, token_ids):
    """The target's token of a draft's own one."""
    return token if token_ids == 0 or token == NOTHING else load_i32(token_ids + token * 4)


@native()
def top_tokens(
    counter, num_rows, frame, space, tokens, logprobs, most, logits, vocab, num_nodes, token_ids, scratch
):
    """See the module. token_ids int32 [V], or 0: the target's token of each of the draft's."""
    place = place_map(frame, space)
    row = atomic_add(counter, 1)
    while row < num_rows:
        here = load_i32(place + row * 4) * most * 4
        count, log_sum = 0, 0.0
        if load_i32(num_nodes + _sequence(frame, space, row) * 4) > 0:
            line = logits + row * vocab * 4
            count, log_sum = list_likeliest(line, vocab, most, tokens + here, logprobs + here, scratch)
        for at in range(here, here + most * 4, 4):
            if at - here >= count * 4 or load_f32(logprobs + at) == LOWEST:
                store_i32(tokens + at, NOTHING)
                store_f32(logprobs + at, LOWEST)
            else:
                store_i32(tokens + at, _own_token(load_i32(tokens + at), token_ids))
                store_f32(logprobs + at, np.float32(np.float64(load_f32(logprobs + at)) - log_sum))
        row = atomic_add(counter, 1)


@native()
def draw_draft(
    counter, num_rows, frame, space, tokens, logprobs, law, logits, num_nodes, token_ids, laws, scratch
):
    """See the module. A greedy row takes its largest logit, with the law at temperature 1."""
    place, vocab = place_map(frame, space), laws.vocab
    row = atomic_add(counter, 1)
    while row < num_rows:
        here, seq = load_i32(place + row * 4), _sequence(frame, space, row)
        line, mine = logits + row * vocab * 4, law + here * vocab * 4
        token = NOTHING
        if load_i32(num_nodes + seq * 4) > 0:
            temperature = load_f32(laws.temperature + seq * 4)
            if temperature > ZERO:
                seed, position = (
                    load_i64(laws.seed + seq * 8),
                    load_i32(laws.prefix_len + seq * 4) + laws.offset,
                )
                token = draw_token(
                    line, vocab, temperature, seed, position, laws.stream, LOWEST, np.int32(0), scratch
                )
            else:
                temperature, token = ONE, best_token(line, vocab)
            if token != NOTHING:
                _write_law(mine, line, vocab, temperature, scratch)
        if token == NOTHING:
            for at in range(vocab):
                store_f32(mine + at * 4, LOWEST)
        store_f32(logprobs + here * 4, LOWEST if token == NOTHING else load_f32(mine + token * 4))
        store_i32(tokens + here * 4, _own_token(token, token_ids))
        row = atomic_add(counter, 1)


@native()
def _write_law(law, logits, vocab, temperature, scratch):
    """law float32 [V] = the log of the probabilities of logits / temperature, of which one is above minus infinity."""
    best, total = LOWEST, 0.0
    for start in range(0, vocab, BLOCK):
        best = max(best, block_max(logits, start, vocab) / temperature)
    for start in range(0, vocab, BLOCK):
        score_block(scratch, logits, start, vocab, temperature)
        count = min(BLOCK, vocab - start)
        for at in range(count):
            store_f32(law + (start + at) * 4, load_f32(scratch + at * 4))
        total += block_mass(scratch, scratch, best)
    log_sum = np.float64(best) + math.log(total)
    for token in range(vocab):
        store_f32(law + token * 4, np.float32(np.float64(load_f32(law + token * 4)) - log_sum))


@native()
def expand_tree(counter, num_sequences, scores, level_nodes, candidates, level):
    """See the module. level_nodes int32 [B]. Padding is written, too."""
    seq = atomic_add(counter, 1)
    while seq < num_sequences:
        live = min(load_i32(level_nodes + seq * 4), level.width)
        _score(seq, live, candidates, scores)
        _choose(seq, live, scores, candidates, level)
        seq = atomic_add(counter, 1)


@native()
def _score(seq, live, candidates, scores):
    """scores = row_scores + logprobs; minus infinity where there is no node, no token, or no number."""
    for row in range(candidates.rows):
        here = seq * candidates.rows + row
        above = ZERO
        if row < live and candidates.row_scores != 0:
            above = load_f32(candidates.row_scores + here * 4)
        for at in range(here * candidates.most * 4, (here + 1) * candidates.most * 4, 4):
            score = LOWEST
            if row < live and load_i32(candidates.tokens + at) != NOTHING:
                score = above + load_f32(candidates.logprobs + at)
            store_f32(scores + at, LOWEST if score != score else score)


@native()
def _choose(seq, live, scores, candidates, level):
    """The best `live` candidates, of equal ones the first, become the nodes of the level."""
    most, here = candidates.most, seq * level.width
    size = candidates.rows * most
    sources, best = level.source + here * 4, level.scores + here * 4
    count = 0
    for at in range(size):
        score = load_f32(scores + (seq * size + at) * 4)
        if live > 0 and score > (LOWEST if count < live else load_f32(best + (live - 1) * 4)):
            insert(score, at, count, live, sources, best)
            count = min(count + 1, live)
    for node in range(level.width):
        mask, token = np.int64(1) << (level.first_node + node), np.int32(0)
        if node < count:
            source = load_i32(sources + node * 4)
            token = load_i32(candidates.tokens + (seq * size + source) * 4)
            if candidates.ancestors != 0:
                mask |= load_i64(candidates.ancestors + (seq * candidates.rows + source // most) * 8)
        else:
            store_i32(sources + node * 4, np.int32(0))
            store_f32(best + node * 4, LOWEST)
        store_i32(level.tokens + (here + node) * 4, token)
        store_i64(level.ancestors + (here + node) * 8, mask)
        store_i32(level.depths + (here + node) * 4, np.int32(level.depth))
