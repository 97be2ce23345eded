"""A union's round in few native calls: after a pass nothing is in the caches, and each call and array costs as it is
touched. Owns no memory."""

from typing import NamedTuple

import numpy as np

from tspec.kernels.jit import native
from tspec.proposers.acceptance_rows import judge_rows
from tspec.proposers.tally_rows import tally_rows
from tspec.proposers.union_rows import PassPrices, choose_nodes, merge_rows, start_rows, weigh_rows

MEMORY_ROUNDS = 16.0
"""Rounds after which a text's speed-up has forgotten most of what was before."""


class Speeds(NamedTuple):
    """What each slot's text got lately, faded.

    tokens  float64 [S]
    passes  float64 [S]  predicted times of its rounds, in plain passes
    gains   float64 [S]  tokens that candidates promised to bring, less what they cost, in a round that asked for them
    """

    tokens: np.ndarray
    passes: np.ndarray
    gains: np.ndarray


@native()
def gather_rows(pool, known, speeds, given, first_class, first_source, batch, prices):
    """Merge the trees of sources `first_source`, … into the pool, which starts anew with source 0; weigh and choose.

    given        trees of each of them, in a tuple
    first_class  int64 [P], of all sources
    batch        (slots, roots, limits), int32 [B] each
    prices       with any rate
    Returns      (gain, seconds of the pass, seconds without candidates, rate); see choose_nodes
    """
    slots, roots, limits = batch
    if first_source == 0:
        start_rows(pool, roots)
    for number in range(len(given)):
        merge_rows(pool, given[number], first_class[first_source + number], first_source + number)
    weigh_rows(pool, known, slots)
    speed_up = 0.0
    for slot in slots:
        speed_up += max(1.0, speeds.tokens[slot] / speeds.passes[slot]) / len(slots)
    alone_s = prices.node_s[len(slots)] + prices.contexts.sum() * prices.context_s[1]
    rate = speed_up * len(slots) / alone_s
    gain, pass_s, plain_s = choose_nodes(
        pool,
        limits,
        PassPrices(
            prices.contexts, prices.node_s, prices.context_s, prices.num_beside, rate, prices.is_padded
        ),
    )
    return gain, pass_s, plain_s, rate


@native()
def learn_rows(pool, known, speeds, trees, tallies, saved, rows, slots, tokens, counts, num_passes):
    """Learn from what came: which candidates were right, what became of those verified, what the texts got.

    rows        int32 [B]: the row of each text in pool and trees, -1 for none
    num_passes  predicted time of the round, in plain passes
    """
    judge_rows(known, pool, rows, slots, tokens, counts)
    tally_rows(tallies, saved, trees, rows, tokens, counts)
    fading = 1 - 1 / MEMORY_ROUNDS
    for place in range(len(rows)):
        if rows[place] >= 0:
            slot = slots[place]
            speeds.tokens[slot] = fading * speeds.tokens[slot] + counts[place]
            speeds.passes[slot] = fading * speeds.passes[slot] + num_passes


@native()
def note_gains(pool, speeds, slots, was_asked, gain):
    """Share what a round's candidates promise among the texts that asked for them, as their own candidates promise."""
    total, fading = 0.0, 1 - 1 / MEMORY_ROUNDS
    for row in range(len(slots)):
        total += pool.gains[row]
    for row in range(len(slots)):
        if was_asked[row]:
            share = gain * pool.gains[row] / total if total > 0 else 0.0
            speeds.gains[slots[row]] = fading * speeds.gains[slots[row]] + (1 - fading) * share
